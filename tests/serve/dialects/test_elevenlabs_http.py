"""ElevenLabs' HTTP without its clients: formats, times, and errors in its shape."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray

from agent_tts.messages import Word, Words
from agent_tts.serve.dialects.elevenlabs_http import OneTimedBody, TimedBody
from agent_tts.serve.dialects.elevenlabs_messages import FILE_FORMATS, DialogueInput, format_of
from tests.speech.audio.test_files import decode
from tests.speech.audio.test_pcm import decode as decode_g711
from tests.support import NOT_KEPT, running_node

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/text-to-speech/anybody"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_node(voice_aliases={"*": "tone-440"}) as node,
        node.http(trust_env=False, limits=NOT_KEPT) as client,
    ):
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


def said(text: str) -> list[DialogueInput]:
    return [DialogueInput(text=text, voice_id="v")]


async def test_a_word_comes_with_the_audio_in_which_it_starts() -> None:
    body = TimedBody(format_of("pcm_24000"), said("one two"))
    body.words(Words("", (Word("one", 0, 90, 0, 3), Word("two", 100, 150, 4, 7))))
    told = [json.loads(body.audio(bytes(3_840))) for _ in range(3)]
    assert [_text(part) for part in told] == ["one ", "two ", ""]
    assert body.end() == b""


async def test_one_object_is_sent_while_it_is_made_whatever_its_length() -> None:
    """It was held until it was complete, with 8 MiB at most: a legal text of ten minutes was refused at its end."""
    audio, words = bytes(range(250)) * 10, Words("", (Word("one", 0, 90, 0, 3), Word("two", 100, 150, 4, 7)))
    for size in (2, 4, 250):  # of each piece: samples of two bytes, base64 of three
        body = OneTimedBody(format_of("pcm_24000"), said("one two"))
        body.words(words)
        sent = [body.audio(audio[at : at + size]) for at in range(0, len(audio), size)]
        assert max(map(len, sent[1:])) <= 4 * (size + 2) // 3
        whole = json.loads(b"".join(sent) + body.end())
        assert base64.b64decode(whole["audio_base64"], validate=True) == audio
        assert _text(whole) == "one two "
    assert json.loads(OneTimedBody(format_of("pcm_24000"), said("one")).end())["alignment"] is None
