"""A connection that moves between nodes, behind a small load balancer."""

from __future__ import annotations

import asyncio
from typing import Any

import av
import pytest

from agent_tts.client.connection import ConnectionLost, NodeConnection, open_connection
from agent_tts.client.moving import MovingConnection, Target, _allowed, connect
from agent_tts.messages import Audio, Cancelled, Flushed, Words
from tests.support import dominant_hz, present, running_node, typed, until
from tests.two_nodes import TEXT, two_nodes_in_this_loop

# Rate and decoder of each.
ENCODINGS = {"pcm_s16le": (24_000, "pcm_s16le"), "mulaw": (8_000, "pcm_mulaw"), "opus": (48_000, "libopus")}
# Of the writer: longer than the listener plays what was written before.
PAUSE_S = 1.5


async def test_a_sentence_goes_on_when_its_node_is_lost() -> None:
    """In each encoding each word is told and heard once, and all audio follows without a hole; so it is for a flush."""
    async with two_nodes_in_this_loop() as balanced:
        async with connect(balanced.url, moves=True, voice="tone-440") as connection:
            lengths = [await _heard(connection, encoding, lead_ms=None) for encoding in ENCODINGS]
            killing = asyncio.get_running_loop().call_later(2.0, balanced.lose)
            resumed = await asyncio.gather(*(_heard(connection, encoding, lead_ms=400) for encoding in ENCODINGS))
            assert killing.when() < asyncio.get_running_loop().time()
            assert connection.is_usable
    for encoding, length, other in zip(ENCODINGS, lengths, resumed, strict=True):
        assert abs(length - other) < 0.4, encoding  # of 6 s: no word is missing, none is there twice


async def test_a_text_without_spaces_goes_on_behind_a_character() -> None:
    """Mutation: a word ends at white space alone, so that all is said again."""
    text = "今天天气很好我们一起去公园散步然后回家吃饭" * 2
    async with two_nodes_in_this_loop() as balanced:
        async with connect(balanced.url, moves=True, lead_ms=200) as connection:
            speech = await connection.open()
            speech.write(text)
            speech.end()
            killing = asyncio.get_running_loop().call_later(1.0, balanced.lose)
            told, samples = dict[int, str](), 0
            async for event in speech.events():
                match event:
                    case Words(kind="aligned", words=some):
                        told |= {word.char_start: word.word for word in some}
                    case Audio(payload=payload):
                        samples += len(payload) // 2
            assert killing.when() < asyncio.get_running_loop().time()
            assert 5 < speech._first_char < 35
    assert [told[place] for place in sorted(told)] == list(text)
    assert samples / 24 == pytest.approx(len(text) * 60, abs=120)  # two characters


async def _heard(connection: MovingConnection, encoding: str, **options: Any) -> float:
    """Say `TEXT`, and decode what comes as one stream; returns the seconds of sound in it."""
    rate, codec = ENCODINGS[encoding]
    decoder: Any = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout = rate, "mono"
    speech = await connection.open(output={"encoding": encoding, "sample_rate": rate}, **options)
    speech.write(TEXT)
    speech.flush("f1")
    speech.end()
    pcm, flushed, words = b"", [], dict[int, str]()
    async for event in speech.events():
        match event:
            case Audio(first_sample=at, payload=payload):
                assert at * 2 == len(pcm)
                frames = decoder.decode(av.Packet(payload)) if payload else []
                pcm += b"".join(frame.to_ndarray().tobytes() for frame in frames)
            case Words(kind="aligned", words=some):
                words |= {word.char_start: word.word for word in some}
            case Flushed(flush_id=name):
                flushed.append(name)
    assert [words[place] for place in sorted(words)] == TEXT.split()
    assert flushed == ["f1"]
    done = present(speech.done)
    assert done.reason == "end"
    if options["lead_ms"] is not None:
        said = next(word for word in reversed(speech.words) if word.char_end <= speech._first_char)
        assert speech._first_ms >= said.end_ms - 10  # all of it was heard
    seconds = len(pcm) / 2 / rate
    assert 0 <= seconds - done.audio_ms / 1_000 < 0.08  # Opus ends with a whole packet
    assert dominant_hz(pcm, rate) == pytest.approx(440, abs=1)
    return seconds


async def test_the_next_turn_is_on_the_node_that_was_asked_for() -> None:
    """The sentence that is spoken meanwhile ends where it is; the old connection is closed behind it."""
    async with running_node() as second, running_node(public_url=second.url) as first:
        async with connect(first.url, moves=True, voice="tone-440") as connection:
            old = await connection.open()
            old.write("One two three")
            for session in list(first.node.sessions):
                session.drain()
            await until(lambda: connection.is_usable and bool(second.node.sessions))
            new = await connection.open()
            new.write("four")
            new.end()
            old.end()
            assert [len([pcm async for pcm in speech]) > 0 for speech in (old, new)] == [True, True]
            await until(lambda: not first.node.sessions)
            assert len(second.node.sessions) == 1


async def test_who_closes_as_soon_as_it_has_moved_closes_the_old_connection_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails where the task that closes the old one is cancelled before it begins."""
    async with running_node() as node:
        old, new = [await open_connection(node.ws_url) for _ in range(2)]
        moving = MovingConnection(old, Target(node.ws_url))

        async def find(_: object) -> NodeConnection:
            return new

        async def leave() -> None:
            await moving._next_node(old)
            await moving.close()

        monkeypatch.setattr(moving, "_find", find)
        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        old.parting.set()
        await leaving
        assert old.lost is not None
        assert new.lost is not None
        await old.close()


async def test_without_another_node_the_utterance_fails() -> None:
    async with running_node() as node:
        async with connect(node.url, moves=True) as connection:
            speech = await connection.open()
            speech.write(TEXT)
            connection._target = Target("http://127.0.0.1:9")
            connection._node._websocket.transport.abort()
            with pytest.raises(ConnectionLost):
                async for _ in speech:
                    pass
            assert not connection.is_usable
            with pytest.raises(ConnectionLost):
                await connection.open()


async def test_what_was_heard_counts_from_the_beginning() -> None:
    async with running_node() as node:
        async with connect(node.url, moves=True, lead_ms=None) as connection:
            speech = await connection.open()
            speech.write(TEXT)
            speech.end()
            async for event in speech.events():
                if isinstance(event, Audio) and event.first_sample > 24_000:
                    break
            connection._node._websocket.transport.abort()
            async for event in speech.events():
                if isinstance(event, Audio) and event.first_sample > 40_000:
                    break
            cut = typed(Cancelled, await speech.cancel(1_500))
            assert cut.heard_text + cut.unheard_text == TEXT
            assert cut.played_ms == 1_500
            assert cut.heard_text.startswith("One two three")


async def test_no_part_of_a_word_is_heard_twice() -> None:
    """The reader has only whole words, behind a pause of the writer, too: a loss makes a text no longer.

    Estimates within a unit are off by 30 ms at most; a word takes 120 ms or more.
    """
    async with running_node() as node:
        whole, *others = await asyncio.gather(
            *(_last_word(node.url, at) for at in (None, *range(20_000, 40_000, 2_500)))
        )
        assert all(-160 <= other - whole <= 30 for other in others), (whole, others)  # shorter by pauses


async def _last_word(url: str, place: int | None) -> int:
    """When the last word of a text behind a pause of the writer is said, ms; the connection is lost at this sample."""
    async with connect(url, moves=True, lead_ms=None, seed=1) as connection:
        speech = await connection.open()
        speech.write("Well, ")
        loop = asyncio.get_running_loop()
        loop.call_later(PAUSE_S, speech.write, f"{TEXT} " * 5)
        loop.call_later(PAUSE_S + 0.01, speech.end)
        samples = 0
        async for pcm in speech:
            if place is not None and samples <= place < samples + len(pcm) // 2:
                connection._node._websocket.transport.abort()
            samples += len(pcm) // 2
        assert speech._losses == (place is not None)
        return speech.words[-1].start_ms


async def test_the_empty_frame_at_the_end_begins_where_the_audio_ends() -> None:
    async with running_node(tone={"char_ms": 40}) as node:
        async with connect(node.url, moves=True, lead_ms=None) as connection:
            speech = await connection.open()
            speech.write("one. ")
            await asyncio.sleep(0.2)  # its audio comes, and its end behind it
            speech.end()
            samples = 0
            async for event in speech.events():
                if isinstance(event, Audio):
                    assert event.first_sample == samples
                    samples += len(event.payload) // 2


def test_an_address_is_not_less_private() -> None:
    assert _allowed("ws://b", "wss://a") == "wss://a"
    assert _allowed("wss://b", "ws://a") == "wss://b"
    assert _allowed(None, "ws://a") == _allowed("ftp://b", "ws://a") == "ws://a"
