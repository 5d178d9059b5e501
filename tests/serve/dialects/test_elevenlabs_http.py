"""ElevenLabs' HTTP without its clients: formats, times, and errors in its shape."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.messages import Word, Words
from agent_tts.serve.dialects.elevenlabs_http import TimedBody
from agent_tts.serve.dialects.elevenlabs_messages import FILE_FORMATS, format_of
from agent_tts.serve.routes import speech_response
from tests.speech.audio.test_files import decode
from tests.speech.audio.test_pcm import decode as decode_g711
from tests.support import RunningNode, running_node, until

pytestmark = pytest.mark.node

PATH = "/v1/text-to-speech/anybody"


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(voice_aliases={"*": "tone-440"}) as running:
        yield running


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=node.url, trust_env=False) as client:
        yield client


async def test_every_format_has_the_same_audio(client: httpx.AsyncClient) -> None:
    seconds = {}
    for name in FILE_FORMATS:
        answer = await client.post(PATH, json={"text": "one two"}, params={"output_format": name})
        assert answer.status_code == 200, name
        file = format_of(name)
        assert answer.headers["content-type"] == file.content_type
        samples = _samples(answer.content, name)
        assert np.std(samples) > 1_000, name
        seconds[name] = len(samples) / file.sample_rate
    exact = seconds["pcm_24000"]
    assert all(0 <= each - exact < 0.1 for each in seconds.values()), seconds


def _samples(data: bytes, name: str) -> NDArray[np.float64]:
    file = format_of(name)
    if name.startswith("pcm"):
        return np.frombuffer(data, "<i2").astype(float)
    if name.startswith(("ulaw", "alaw")):
        return decode_g711(data, "mulaw" if name.startswith("u") else "alaw", file.sample_rate).astype(float)
    samples, rate = decode(data, "wav")
    assert rate == file.sample_rate
    return samples


async def test_the_default_format_is_elevenlabs(client: httpx.AsyncClient) -> None:
    answer = await client.post(f"{PATH}/stream", json={"text": "one", "model_id": "eleven_flash_v2_5"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg")
    assert decode(answer.content, "mp3")[1] == 44_100


async def test_times_are_estimated_if_the_engine_has_none(client: httpx.AsyncClient) -> None:
    params = {"output_format": "pcm_24000"}
    whole = (await client.post(f"{PATH}/with-timestamps", json={"text": "one  two"}, params=params)).json()
    assert whole["alignment"] == whole["normalized_alignment"]
    assert "".join(whole["alignment"]["characters"]) == "one two "
    starts = whole["alignment"]["character_start_times_seconds"]
    assert starts == sorted(starts)
    answer = await client.post(f"{PATH}/stream/with-timestamps", json={"text": "one  two"}, params=params)
    parts = [json.loads(line) for line in answer.text.splitlines()]
    assert "".join(part["audio_base64"] and _text(part) for part in parts) == "one two "
    assert b"".join(base64.b64decode(part["audio_base64"]) for part in parts) == base64.b64decode(whole["audio_base64"])


def _text(part: dict[str, dict[str, list[str]] | None]) -> str:
    alignment = part["alignment"]
    return "" if alignment is None else "".join(alignment["characters"])


def test_a_word_comes_with_the_audio_in_which_it_starts() -> None:
    body = TimedBody(format_of("pcm_24000"), "one two", is_whole=False)
    assert body.words(Words("", (Word("one", 0, 90, 0, 3), Word("two", 100, 150, 4, 7)))) == b""
    told = [json.loads(body.audio(bytes(3_840))) for _ in range(3)]
    assert [_text(part) for part in told] == ["one ", "two ", ""]
    assert body.end() == b""


async def test_errors_are_in_its_shape(client: httpx.AsyncClient) -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"content": b"{"}, 400, "bad_message"),
        ({"json": {"text": " "}}, 400, "bad_message"),
        ({"json": {"text": "one", "voice_settings": {"speed": 9}}}, 400, "bad_message"),
        ({"json": {"text": "x" * 30_000}}, 413, "text_too_long"),
        ({"json": {"text": "one"}, "params": {"output_format": "mp3"}}, 400, "unsupported_format"),
        ({"json": {"text": "one", "model_id": "nothing"}}, 404, "model_not_found"),
    ]
    paths = [PATH + path for path in ("", "/stream", "/with-timestamps", "/stream/with-timestamps")]
    for path, (request, status, code) in product(paths, wrong):
        answer = await client.post(path, **request)
        assert (answer.status_code, answer.json()["detail"]["status"]) == (status, code)
        assert answer.json()["detail"]["message"]


async def test_an_error_before_the_first_audio_is_in_its_shape_too() -> None:
    """Such an error comes while the answer is sent. Fails without `error_body` in the request."""
    async with running_node(slots=1, queue=0, limits={"sessions_per_key": 1}, auth={"api_keys": ["k"]}) as node:
        async with httpx.AsyncClient(base_url=node.url, headers={"xi-api-key": "k"}, trust_env=False) as client:
            async with client.stream("POST", "/v1/text-to-speech/None", json={"text": "one " * 400}) as first:
                await until(lambda: node.node.service.speaking == 1)
                answer = await client.post("/v1/text-to-speech/None", json={"text": "one"})
                assert (answer.status_code, answer.json()["detail"]["status"]) == (503, "at_capacity")
                assert first.status_code == 200
            refused = await client.post("/v1/text-to-speech/None", json={"text": "one"}, headers={"xi-api-key": "no"})
            assert (refused.status_code, refused.json()["detail"]["status"]) == (401, "unauthorized")


async def test_other_routes_keep_their_own_shape(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/audio/speech", json={"input": ""})
    assert answer.json()["error"]["code"] == "bad_message"


async def test_an_answer_that_is_held_until_it_is_complete_has_a_limit(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_response, "MAX_WHOLE", 10_000)
    refused = await client.post(f"{PATH}/with-timestamps", json={"text": "one two three"})
    assert (refused.status_code, refused.json()["detail"]["status"]) == (413, "text_too_long")
    streamed = await client.post(f"{PATH}/stream/with-timestamps", json={"text": "one two three"})
    assert streamed.status_code == 200
