"""vLLM-Omni's WebSocket as its example client uses it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agent_tts.messages import Audio, Finished, Word, Words
from agent_tts.protocol.adapter import Update
from agent_tts.serve.dialects.vllm_omni import VllmConfig, VllmOmniAdapter
from tests.serve.dialects.hearing import FIRST, LONG, NEXT, SECOND, VOICE, check_spoken
from tests.serve.dialects.pipecat_run import tokens
from tests.serve.dialects.stock import Stock
from tests.support import RunningNode, present, running_node, typed, until
from tests.test_speech_is_right import decoded

pytestmark = [pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

LIMIT_S = 20.0


class Client:
    """A client like vLLM-Omni's example."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, type_: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, **fields}))

    async def say(self, text: str) -> None:
        for token in tokens(text):
            await self.send("input.text", text=token)
        await self.send("input.done")

    async def until(self, type_: str) -> list[Any]:
        """Everything up to a message of this type; audio is bytes."""
        came: list[Any] = []
        async with asyncio.timeout(LIMIT_S):
            while not came or isinstance(came[-1], bytes) or came[-1]["type"] != type_:
                data = await self.socket.recv()
                came.append(data if isinstance(data, bytes) else json.loads(data))
        return came


@pytest.fixture
def node(stock: Stock) -> RunningNode:
    return stock.node


@asynccontextmanager
async def connected(node: RunningNode, **config: Any) -> AsyncIterator[Client]:
    url = node.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
    async with connect(url, proxy=None) as socket:
        client = Client(socket)
        await client.send("session.config", **({"voice": VOICE} | config))
        yield client


def sound(came: list[Any]) -> bytes:
    return b"".join(each for each in came if isinstance(each, bytes))


def types(came: list[Any]) -> list[str]:
    return [each["type"] for each in came if not isinstance(each, bytes)]


STREAM = {"stream_audio": True, "response_format": "pcm"}


async def test_utterances_follow_each_other(node: RunningNode) -> None:
    """The second is sent while the first is spoken, and waits for it."""
    async with connected(node, **STREAM) as client:
        await client.say(f"{FIRST} {SECOND}")
        await client.say(NEXT)
        first, second = await client.until("session.done"), await client.until("session.done")
        for index, came in enumerate((first, second)):
            assert types(came) == ["audio.start", "audio.done", "session.done"]
            assert {each["utterance_index"] for each in came if not isinstance(each, bytes)} == {index}
            assert came[-2]["total_bytes"] == len(sound(came))
            assert (came[-2]["error"], came[-1]["total_sentences"]) == (False, 1)
        assert (first[0]["sample_rate"], first[0]["channels"]) == (24_000, 1)
        check_spoken(sound(first), FIRST, SECOND)
        check_spoken(sound(second), NEXT)


async def test_files(node: RunningNode) -> None:
    for format_ in ("wav", "mp3", "opus"):
        async with connected(node, response_format=format_) as client:
            await client.say(FIRST)
            samples, rate = decoded(sound(await client.until("session.done")))
            check_spoken(samples.tobytes(), FIRST, rate=rate)


async def test_words_come_with_their_audio(node: RunningNode) -> None:
    async with connected(node, **STREAM, word_timestamps=True) as client:
        await client.say(f"{FIRST} {SECOND}")
        came = await client.until("session.done")
    assert not sound(came)
    chunks = [each for each in came if each["type"] == "audio.chunk"]
    assert [each["chunk_id"] for each in chunks] == list(range(len(chunks)))
    told = [(word, chunk["chunk_end_ms"]) for chunk in chunks for word in chunk["timestamps"] or ()]
    assert [word["word"] for word, _ in told] == f"{FIRST} {SECOND}".split()
    assert all(word["start_ms"] <= end_ms for word, end_ms in told)
    check_spoken(b"".join(base64.b64decode(each["audio_b64"]) for each in chunks), FIRST, SECOND)


async def test_the_times_of_all_words_come_with_the_end_of_the_audio(node: RunningNode) -> None:
    """As Baseten's deployments tell them, beside those of vLLM-Omni itself, and again for the next utterance."""
    for both in (False, True):
        async with connected(node, **STREAM, word_timestamps=both, timestamp_type="word") as client:
            for text in (f"{FIRST} {SECOND}", NEXT):
                await client.say(text)
                came = await client.until("session.done")
                done = came[-2]
                told = done["timestamp_info"]["word_alignment"]
                starts, ends = told["word_start_times_seconds"], told["word_end_times_seconds"]
                assert told["words"] == text.split()
                assert len(starts) == len(ends) == len(text.split())
                edges = [edge for times in zip(starts, ends, strict=True) for edge in times]
                assert edges == sorted(edges)
                assert 0 < edges[-1] <= done["total_bytes"] / 48_000
                chunks = [each for each in came if isinstance(each, dict) and each["type"] == "audio.chunk"]
                words = [word for chunk in chunks for word in chunk["timestamps"] or ()]
                assert [word["start_ms"] / 1_000 for word in words] == (starts if both else [])


async def test_no_times_come_unless_they_are_asked_for(node: RunningNode) -> None:
    for asked in ({}, {"timestamp_type": None}):
        async with connected(node, **STREAM, **asked) as client:
            await client.say(FIRST)
            assert "timestamp_info" not in (await client.until("session.done"))[-2]


async def test_the_times_of_many_words_are_not_computed_at_once() -> None:
    """Fails if they are encoded with the end of the audio: 10 000 words take 5 ms there."""
    adapter = VllmOmniAdapter(1_000)
    config = {"type": "session.config", "timestamp_type": "word", **STREAM}
    for message in (config, {"type": "input.text", "text": "a " * 200}, {"type": "input.done"}):
        list(adapter.decode(json.dumps(message)))
    times = tuple(Word("a", 80 * place, 80 * place + 40, 2 * place, 2 * place + 1) for place in range(200))
    list(adapter.encode(Words("utterance-0", times, "aligned")))
    for frame in range(199):
        list(adapter.encode(Audio("utterance-0", bytes(3_840), frame * 1_920)))
    waiting = present(adapter._utterance).words
    assert [word.start_ms for word in waiting._waiting.values()] == [80 * 199]
    told = [json.loads(data) for data in adapter.encode(Finished("utterance-0", "end")) if isinstance(data, str)]
    ends = [one["timestamp_info"]["word_alignment"] for one in told if one["type"] == "audio.done"]
    assert [len(end["words"]) for end in ends] == [200]  # with the last, which begins where the audio ends


async def test_a_cancel_stops_the_audio_and_the_next_utterance_is_clean(node: RunningNode) -> None:
    async with connected(node, **STREAM) as client:
        await client.say(LONG)
        await client.say("This waits, and is dropped.")
        await client.until("audio.start")
        await client.send("input.cancel")
        cancelled = (await client.until("audio.cancelled"))[-1]
        assert (cancelled["utterance_index"], cancelled["reason"]) == (0, "client_cancel")
        await until(lambda: node.node.service.speaking == 0, 2)
        await client.say(NEXT)
        came = await client.until("session.done")
        assert types(came) == ["audio.start", "audio.done", "session.done"]
        assert came[-1]["utterance_index"] == 1
        check_spoken(sound(came), NEXT)


async def test_a_cancel_and_an_end_without_an_utterance_are_answered(node: RunningNode) -> None:
    async with connected(node) as client:
        await client.send("input.cancel")
        await client.send("input.done")
        assert types(await client.until("session.done")) == ["audio.cancelled", "session.done"]
        await client.send("session.close")
        with pytest.raises(ConnectionClosed) as closed:
            await client.socket.recv()
        assert present(closed.value.rcvd).code == 1000


async def test_a_failed_utterance_ends_and_the_next_is_spoken() -> None:
    """Fails if the failed context stays open: it waits for text in its slot."""
    async with running_node(limits={"text_message_chars": 20}) as node:
        async with connected(node, **STREAM, voice=None) as client:
            await client.send("input.text", text="One. ")
            await client.send("input.text", text="x" * 30)
            await client.send("input.text", text="dropped")
            await client.send("input.done")
            came = await client.until("session.done")
            assert sorted(types(came)) == ["audio.done", "audio.start", "error", "session.done"]
            assert types(came)[-2:] == ["audio.done", "session.done"]
            assert came[-2]["error"]
            await until(lambda: node.node.service.speaking == 0, 2)
            await client.send("input.text", text="Two.")
            await client.send("input.done")
            assert types(await client.until("session.done")) == ["audio.start", "audio.done", "session.done"]


async def test_an_invalid_config_is_an_error(node: RunningNode) -> None:
    for config in (
        {"voice": "nobody"},
        {"response_format": "flac"},
        {"stream_audio": True},
        {"timestamp_type": "word"},
        {"timestamp_type": "character"} | STREAM,
        {"timestamp_type": 1} | STREAM,
        {"ref_audio": "x"},
        {"model": "no"},
    ):
        async with connected(node, **config) as client:
            assert types(await client.until("error")) == ["error"], config


async def test_nulls_are_as_what_is_not_there(node: RunningNode) -> None:
    """Clients in other languages write them for what is not set."""
    async with connected(node, **dict.fromkeys(VllmConfig.model_fields)) as client:
        await client.say(FIRST)
        assert types(await client.until("session.done")) == ["audio.start", "audio.done", "session.done"]


# ---------------------------------------------------------------- the adapter alone


async def test_audio_of_another_context_is_not_sent() -> None:
    adapter = VllmOmniAdapter(1_000)
    silence = np.zeros(4, "<i2").tobytes()
    assert list(adapter.encode(Audio("utterance-0", silence))) == []


async def test_speech_that_is_cut_short_is_an_error() -> None:
    async with running_node(limits={"max_frames": 10}) as node, connected(node, **STREAM, voice=None) as client:
        await client.send("input.text", text="One two three four five six seven eight nine ten eleven twelve.")
        await client.send("input.done")
        came = await client.until("session.done")
        assert types(came) == ["audio.start", "error", "audio.done", "session.done"]
        error, done = (
            message for message in came if isinstance(message, dict) and message["type"] in ("error", "audio.done")
        )
        assert (error["code"], error["partial_audio"]) == ("text_too_long", True)
        assert done["error"]


async def test_each_configuration_sets_the_lead() -> None:
    """A stream after a file is paced again."""
    adapter = VllmOmniAdapter(1_000)
    leads = []
    for streamed in (True, False, True):
        message = {"type": "session.config", "stream_audio": streamed, "response_format": "pcm"}
        (update,) = adapter.decode(json.dumps(message))
        leads.append(typed(Update, update).fields["lead_ms"])
    assert leads == [1_000, None, 1_000]
