"""A protocol session over the real engine loop, in this process."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_tts.config.settings import Settings
from agent_tts.engine.factory import create_loop
from agent_tts.engine_info import FRAME_SAMPLES
from agent_tts.errors import SlowConsumer
from agent_tts.messages import Append, Audio
from agent_tts.options import SpeechOptions
from agent_tts.protocol.adapter import Event
from agent_tts.protocol.v1 import MAX_UNKNOWN, NativeAdapter
from agent_tts.serve import session as session_module
from agent_tts.serve.access.fair_queue import SLICE_S
from agent_tts.serve.access.guard import Guard
from agent_tts.serve.node import Node
from agent_tts.serve.session import FOLLOWING, MAX_BEHIND, SLICE_CHARS, Session
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.speech.service import SpeechService
from tests.in_process import InProcessEngine
from tests.support import dominant_hz, present, until

LIMIT_S = 10.0


class Peer:
    """The client's side of a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.adapter = NativeAdapter()
        self.messages: list[dict[str, Any]] = []
        self.audio: dict[str, list[Audio[str]]] = {}
        self.order: list[str] = []  # order of all messages, as "type context_id"
        self._wake = asyncio.Event()
        session.waker = self._wake.set

    def send(self, type_: str, **fields: Any) -> None:
        self.session.receive(self.adapter.decode(json.dumps({"type": type_, **fields})))

    def write(self, context_id: str, text: str) -> None:
        """All text of a context, or the rest of it."""
        self.send("text.append", context_id=context_id, text=text)
        self.send("context.end", context_id=context_id)

    async def hear(self, context_id: str, frames: int) -> None:
        """Take messages until so many pieces of audio have come."""
        while len(self.audio.get(context_id, [])) < frames:
            await asyncio.sleep(0.001)
            self.take()

    def take(self) -> None:
        """Take all messages that are ready."""
        while (event := self.session.poll()) is not None:
            if isinstance(event, Audio):
                self.audio.setdefault(event.id, []).append(event)
                self.order.append(f"audio {event.id}")
            else:
                for message in self.read(event):
                    self.messages.append(message)
                    self.order.append(f"{message['type']} {message.get('context_id')}")

    def read(self, event: Event) -> list[dict[str, Any]]:
        """The messages of an event that is no audio."""
        return [json.loads(text) for text in self.adapter.encode(event)]

    async def until(self, type_: str, context_id: str | None = None) -> dict[str, Any]:
        """The first message of this type that was not returned before."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                self._wake.clear()
                self.take()
                for index, message in enumerate(self.messages):
                    if message["type"] == type_ and context_id in (None, message.get("context_id")):
                        return self.messages.pop(index)
                await self._wake.wait()

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == type_]

    def words(self, context_id: str | None = None, kind: str | None = None) -> list[dict[str, Any]]:
        """The words that were told, all or of one context and one kind."""
        found = [told for told in self.of("words") if context_id in (None, told["context_id"])]
        return [word for told in found if kind in (None, told["kind"]) for word in told["words"]]

    def pcm(self, context_id: str) -> bytes:
        return b"".join(chunk.payload for chunk in self.audio.get(context_id, []))


@asynccontextmanager
async def running(playout: Any = None, **values: Any) -> AsyncIterator[Peer]:
    """A session on a new node with the tone engine."""
    settings = Settings(**dict[str, Any](engine="tone", lead_ms=60_000) | values)
    metrics = Metrics()
    service = SpeechService([lambda events, lost: InProcessEngine(create_loop(settings), events, lost)])
    node = Node(settings, service, Guard(settings, metrics), metrics)
    await service.start()
    await until(lambda: service.ready)
    session = Session(node, "test", playout)
    try:
        yield Peer(session)
    finally:
        session.close()
        await until(lambda: service.speaking == 0)
        assert not node.sessions
        await service.close()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with running() as made:
        yield made


async def say(peer: Peer, context_id: str, text: str, **fields: Any) -> dict[str, Any]:
    peer.send("context.open", context_id=context_id, **fields)
    peer.write(context_id, text)
    return await peer.until("context.done", context_id)


async def test_a_session_begins_with_the_nodes_properties(peer: Peer) -> None:
    created = await peer.until("session.created")
    assert created["protocol"] == "agent_tts.v1"
    assert (created["engine"], created["sample_rate"], created["frame_ms"]) == ("tone", 24_000, 80)
    assert created["limits"]["text_message_chars"] == 4_000
    assert "markup" in created["features"]
    source = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
    assert created["provenance"] == {"synthetic": True, "digital_source_type": source, "watermark": None}


async def test_fields_of_newer_clients_are_told_once_and_the_rest_is_obeyed(peer: Peer) -> None:
    peer.send("session.update", session={"mood": "good", "voice": "tone-880", "output": {"gain": 2}})
    updated = await peer.until("session.updated")
    assert (updated["session"]["voice"], "mood" in updated["session"]) == ("tone-880", False)
    assert (await say(peer, "t1", "Hello", mood="bad", speed=2))["reason"] == "end"
    assert dominant_hz(peer.pcm("t1")) == pytest.approx(880, abs=5)
    assert peer.of("error") == []
    about = [(warning["code"], warning["context_id"], warning["fields"]) for warning in peer.of("warning")]
    first = ["session.mood", "session.output.gain"]
    assert about == [("unknown_field", None, first), ("unknown_field", "t1", ["mood"])]
    peer.send("text.append", context_id="t2", text="Hello", mood="bad", context_no=7)
    assert (await peer.until("warning", "t2"))["fields"] == ["context_no"]
    assert peer.order.index("warning None") < peer.order.index("session.updated None")


async def test_unknown_fields_are_no_flood_of_warnings(peer: Peer) -> None:
    for number in range(1_000):
        peer.send("text.append", context_id="t1", text="", **{f"{number} {index}": index for index in range(40)})
    peer.send("ping", t=1)
    await peer.until("pong")
    assert sum(len(warning["fields"]) for warning in peer.of("warning")) == MAX_UNKNOWN


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"voice": "nobody"}, "unknown_voice", "GET /v1/audio/voices"),
        ({"language": "klingon"}, "unsupported_language", "language"),
        ({"output": {"encoding": "flac"}}, "unsupported_format", "pcm_s16le"),
        ({"lead_ms": "x"}, "bad_message", "session.lead_ms"),
        ({"model": "tone-1"}, "model_not_found", "did you mean 'tone'?"),
        ({"model": "tts-1-klingon"}, "model_not_found", "tts-1-de"),
        ({"voice": "clone:bob"}, "unknown_voice", "GET /v1/audio/voices"),
        ({"speaker_embedding": [0.5] * 2_048}, "unsupported", "Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
        ({"speaker_embedding": [0.5], "voice": "tone-440"}, "bad_message", "in the place of a voice"),
        ({"speaker_embedding": []}, "bad_message", "at least 1"),
        ({"speaker_embedding": ["x"]}, "bad_message", "number"),
    ],
)
async def test_wrong_choices_are_refused_by_session_and_context(
    peer: Peer, fields: dict[str, Any], code: str, says: str
) -> None:
    peer.send("session.update", session=fields)
    peer.send("context.open", context_id="t1", **fields)
    for context_id in (None, "t1"):
        error = await peer.until("error")
        assert (error["code"], error["context_id"]) == (code, context_id)
        assert says in error["message"]
    assert (await say(peer, "t2", "still alive"))["reason"] == "end"


async def test_models_of_the_node_and_openais_names_are_accepted(peer: Peer) -> None:
    for model in ("tone", "tts-1", "gpt-4o-mini-tts-de", None):
        peer.send("session.update", session={"model": model})
        assert (await peer.until("session.updated"))["session"]["model"] == model
        assert (await say(peer, f"of {model}", "Hello."))["reason"] == "end"


async def test_a_context_from_open_to_done(peer: Peer) -> None:
    done = await say(peer, "t1", "Hello world, this is the node.", voice="tone-660")
    assert (done["reason"], done["context_no"]) == ("end", 1)
    assert done["ttfa_ms"] >= 0
    assert done["rtf"] >= 0
    chunks = peer.audio["t1"]
    assert peer.order.index("context.started t1") < peer.order.index("audio t1")
    assert peer.order[-1] == "context.done t1"
    assert [c.first_sample for c in chunks] == [FRAME_SAMPLES * i for i in range(len(chunks))]
    assert [c.flags for c in chunks] == [0] * (len(chunks) - 1) + [1]
    assert done["audio_ms"] == round(len(peer.pcm("t1")) / 48)
    assert abs(dominant_hz(peer.pcm("t1")) - 660) < 5


async def test_contexts_interleave_and_each_is_whole(peer: Peer) -> None:
    for name in ("a", "b", "c"):
        peer.write(name, "many words to say here " * 5)
    for name in ("a", "b", "c"):
        await peer.until("context.done", name)
    assert peer.pcm("a") == peer.pcm("b") == peer.pcm("c")
    audio = [entry for entry in peer.order if entry.startswith("audio")]
    assert audio != sorted(audio), "one context had to wait for another to end"


async def test_all_words_of_a_long_message_come_before_its_audio(peer: Peer) -> None:
    """They are read in parts, between which others have the event loop."""
    peer.send("text.append", context_id="t", text="word after word " * 200)
    async with asyncio.timeout(LIMIT_S):
        while not peer.audio:
            peer.take()
            await asyncio.sleep(0)
    before = peer.order[: peer.order.index("audio t")]
    assert before.count("words t") > 5
    words = [word for message in peer.of("words")[: before.count("words t")] for word in message["words"]]
    assert [word["word"] for word in words[:600]] == ["word", "after", "word"] * 200


@pytest.mark.parametrize("kind", ["estimated", "aligned"])
async def test_words_are_estimated_at_once_and_sent_again_with_their_audio(peer: Peer, kind: str) -> None:
    text = "  Hello, world!  Fine — 3.14?"
    await say(peer, "t1", text)
    words = peer.words(kind=kind)
    assert [word["word"] for word in words] == text.split()
    assert all(text[word["char_start"] : word["char_end"]] == word["word"] for word in words)
    assert {message["kind"] for message in peer.of("words")} == {"estimated", "aligned"}
    assert peer.order.index("context.started t1") < peer.order.index("words t1")


async def test_markup_and_normalize_are_options_of_a_context(peer: Peer) -> None:
    text = 'It is <break time="800ms"/> $5. Yes'
    done = await say(peer, "t1", text, normalize=True)
    plain = await say(peer, "t2", "It is five dollars. Yes")
    assert done["audio_ms"] == plain["audio_ms"] + 800
    words = peer.words("t1")
    assert [word["word"] for word in words] == 2 * ["It", "is", "$5.", "Yes"]
    assert (words[-2]["word"], words[-1]["word"]) == ("$5.", "Yes")
    assert words[-2]["start_ms"] == pytest.approx(4 * 60 + 800, abs=15)
    assert words[-2]["start_ms"] < words[-1]["start_ms"] <= words[-1]["end_ms"] <= done["audio_ms"]


async def test_a_context_says_words_as_its_lexicon_has_them_or_its_sessions(peer: Peer) -> None:
    """The length of a tone is that of what is said; the words are those of the text."""
    lengths = {}
    peer.send("session.update", session={"lexicon": {"nginx": "engine x and so on"}})
    updated = await peer.until("session.updated")
    assert updated["session"]["lexicon"] == {"nginx": "engine x and so on"}
    lexicons: dict[str, Any] = {"said": {}, "own": {"lexicon": {"Nginx": {"alias": "n"}}}, "none": {"lexicon": None}}
    for context_id, fields in lexicons.items():
        lengths[context_id] = (await say(peer, context_id, "Nginx runs.", **fields))["audio_ms"]
        assert {(word["word"], word["char_start"]) for word in peer.words()} == {("Nginx", 0), ("runs.", 6)}
    assert lengths["own"] < lengths["none"] < lengths["said"]
    assert lengths["said"] == (await say(peer, "whole", "Engine x and so on runs."))["audio_ms"]


@pytest.mark.parametrize(
    "lexicon",
    [
        "nginx",
        {"nginx": 5},
        {"nginx": {"alias": "x", "speed": 2}},
        {"nginx": {"alias": "x", "match_case": "yes"}},
        {"nginx": "x" * 1_000},
        {"nginx": {"ipa": "\x1b"}},
    ],
    ids=str,
)
async def test_a_wrong_lexicon_is_refused_and_not_quoted(peer: Peer, lexicon: object) -> None:
    peer.send("session.update", session={"lexicon": lexicon})
    error = await peer.until("error")
    assert (error["code"], error["message"].partition(":")[0]) == ("bad_message", "session.lexicon")
    assert "nginx" not in error["message"]


async def test_numbers_are_normalized_if_the_node_does_so_by_default() -> None:
    async with running(normalize=True) as peer:
        said = await say(peer, "t1", "$5")
        assert said["audio_ms"] == (await say(peer, "t2", "five dollars"))["audio_ms"]
        assert said["audio_ms"] > (await say(peer, "t3", "$5", normalize=False))["audio_ms"]


async def test_words_after_a_flush_start_after_its_audio(peer: Peer) -> None:
    peer.send("text.append", context_id="t1", text="this is it")
    peer.send("context.flush", context_id="t1", flush_id="f1")
    flushed = await peer.until("context.flushed")
    peer.write("t1", " and on")
    await peer.until("context.done")
    told = {word["word"]: word for word in peer.words()}
    assert told["and"]["start_ms"] == pytest.approx(flushed["audio_ms"], abs=11)


async def test_the_pace_of_a_voice_improves_estimates() -> None:
    async with running(tone={"char_ms": 25}) as peer:
        off = []
        for name in ("t1", "t2"):
            done = await say(peer, name, "some words that are said without a pause")
            words = peer.words(name)
            first = words[: len(words) // 2]
            off.append(abs(first[-1]["end_ms"] - done["audio_ms"]))
        assert off[1] < off[0] / 2


async def test_cancel_stops_audio_at_once_and_reports_the_heard_text(peer: Peer) -> None:
    text = "These are many words that will never be spoken to their end. " * 10
    peer.send("text.append", context_id="t1", text=text)
    await peer.until("words")
    await peer.hear("t1", 8)
    peer.send("context.cancel", context_id="t1", played_ms=400)
    cancelled = await peer.until("context.cancelled")
    heard = len(peer.audio["t1"])
    done = await peer.until("context.done")
    assert done["reason"] == "cancelled"
    assert len(peer.audio["t1"]) == heard
    assert peer.order[-1] == "context.done t1"
    assert cancelled["heard_text"] + cancelled["unheard_text"] == text
    assert 0 < len(cancelled["heard_text"]) < 20
    assert cancelled["played_ms"] == 400 < cancelled["generated_ms"]


class _Full:
    """A playout that accepts a number of chunks and plays them for the rest of the test."""

    def __init__(self, frames: int, played_ms: int | None = None) -> None:
        self._room = frames
        self._played_ms = played_ms
        self.cleared: list[int] = []

    def played_ms(self, context_no: int) -> int | None:
        return self._played_ms

    def clear(self, context_no: int) -> None:
        self.cleared.append(context_no)

    def wants(self, context_no: int) -> bool:
        self._room -= 1
        return self._room >= 0

    def is_playing(self, context_no: int) -> bool:
        return True

    def end(self, context_no: int) -> None: ...


@pytest.mark.parametrize(("times", "frames", "played_ms"), [(1, 1_000, 800), (3, 20, 1_600)])
async def test_what_was_not_played_was_not_heard(times: int, frames: int, played_ms: int) -> None:
    """Because it has not left the node, or because it is beyond a limit."""
    async with running(_Full(10), limits={"max_frames": frames}) as peer:
        text = "These words are all made before the first of them has left the node at all. " * times
        peer.write("t1", text)
        await until(lambda: peer.session.node.service.speaking == 0)
        peer.take()
        assert peer.audio["t1"]
        peer.send("context.cancel", context_id="t1", played_ms=played_ms)
        cancelled = await peer.until("context.cancelled")
        assert cancelled["generated_ms"] == 1_600 if frames == 20 else cancelled["generated_ms"] > 3_000
        assert 5 < len(cancelled["heard_text"]) < len(text) / 2


async def test_a_star_cancels_every_context(peer: Peer) -> None:
    for name in ("a", "b"):
        peer.send("text.append", context_id=name, text="word " * 100)
    peer.send("context.cancel", context_id="*")
    for name in ("a", "b"):
        await peer.until("context.cancelled", name)
        assert (await peer.until("context.done", name))["reason"] == "cancelled"
    peer.send("context.cancel", context_id="*")
    peer.take()
    assert peer.of("error") == []


Sent = tuple[str, dict[str, Any]]  # a type and its fields
OPEN: Sent = ("context.open", {})
TEXT: Sent = ("text.append", {"text": "Hello"})
FLUSH: Sent = ("context.flush", {"flush_id": "late"})
END: Sent = ("context.end", {})
CANCEL: Sent = ("context.cancel", {})
# What a client sends of one context, and the codes of the errors that it gets.
REFUSED: dict[str, tuple[list[Sent], list[str]]] = {
    "no context is open": ([CANCEL, END, FLUSH, ("playback.ack", {"played_ms": 1})], ["unknown_context"] * 4),
    "it is open": ([OPEN, OPEN], ["context_exists"]),
    "it was ended": ([TEXT, END, TEXT, FLUSH], ["bad_message"] * 2),
    "it was cancelled": ([TEXT, CANCEL, TEXT, FLUSH], ["unknown_context"] * 2),
    # Its text would be spoken in another voice. Guards `_dead` in `Session._open`.
    "it was refused": ([("context.open", {"voice": "nobody"}), TEXT], ["unknown_voice", "unknown_context"]),
    "the message is wrong": ([("text.append", {"text": 5})], ["bad_message"]),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_what_cannot_be_obeyed_is_an_error_of_its_context(peer: Peer, why: str) -> None:
    """A client that waits for its flush_id must not wait for ever."""
    sent, codes = REFUSED[why]
    for type_, fields in sent:
        peer.send(type_, context_id="t1", **fields)
    errors = [await peer.until("error", "t1") for _ in codes]
    assert [(error["code"], error["fatal"]) for error in errors] == [(code, False) for code in codes]
    peer.send("context.cancel", context_id="*")  # so that the id is free
    while peer.session.is_speaking:
        await peer.until("context.done", "t1")
    assert (await say(peer, "t1", "Hello"))["reason"] == "end"


async def test_limits_on_text_and_contexts() -> None:
    limits = {"text_message_chars": 10, "text_context_chars": 15, "contexts_per_session": 2}
    async with running(limits=limits) as peer:
        peer.send("text.append", context_id="t0", text="x" * 11)
        assert (await peer.until("error"))["code"] == "text_too_long"
        peer.send("text.append", context_id="t0", text="the rest")  # text without its beginning must not be spoken
        assert (await peer.until("error"))["code"] == "unknown_context"
        peer.send("text.append", context_id="t1", text="x" * 10)
        peer.send("text.append", context_id="t1", text="x" * 11)
        assert (await peer.until("error"))["code"] == "text_too_long"
        peer.send("text.append", context_id="t1", text="x" * 6)
        assert (await peer.until("error"))["code"] == "text_too_long"
        peer.send("context.open", context_id="t2")
        peer.send("context.open", context_id="t3")
        assert (await peer.until("error"))["code"] == "context_limit"
        peer.send("context.end", context_id="t1")
        done = await peer.until("context.done", "t1")
        assert done["audio_ms"] == 600


async def test_a_full_node_refuses_and_text_in_flight_does_not_reopen_the_failed_context() -> None:
    async with running(slots=1, queue=0) as peer:
        peer.send("text.append", context_id="t1", text="word")
        await peer.until("context.started")
        peer.send("text.append", context_id="t2", text="refused")
        error = await peer.until("error", "t2")
        assert (error["code"], error["retry_after_ms"] > 0) == ("at_capacity", True)
        assert (await peer.until("context.done", "t2"))["reason"] == "error"
        assert peer.pcm("t2") == b""
        peer.messages.clear()
        peer.send("text.append", context_id="t2", text=" in flight")
        assert (await peer.until("error", "t2"))["code"] == "unknown_context"
        peer.send("context.end", context_id="t2")  # from here on the client knows of the failure
        peer.send("context.cancel", context_id="t1")
        await peer.until("context.done", "t1")
        assert peer.of("error") == []
        assert (await say(peer, "t2", "anew"))["reason"] == "end"


async def test_a_context_without_text_is_starved() -> None:
    async with running(limits={"text_idle_s": 0.05}) as peer:
        peer.send("text.append", context_id="t1", text="word ")
        error = await peer.until("error")
        assert error["code"] == "starved"
        assert (await peer.until("context.done"))["reason"] == "error"


async def test_a_fault_of_one_context_ends_only_that_context() -> None:
    async with running(tone={"scripted_faults": True}) as peer:
        peer.send("text.append", context_id="good", text="one two three four five")
        bad = await say(peer, "bad", "one two three four five", instructions="fault:nan@2")
        assert bad["reason"] == "error"
        assert len(peer.pcm("bad")) == 2 * 2 * FRAME_SAMPLES
        peer.send("context.end", context_id="good")
        assert (await peer.until("context.done", "good"))["reason"] == "end"
        assert peer.of("error")[0]["code"] == "internal"


async def test_a_runaway_ends_with_length() -> None:
    async with running(tone={"scripted_faults": True}, limits={"max_frames": 20}) as peer:
        done = await say(peer, "t1", "one", instructions="fault:never_end@0")
        assert (done["reason"], done["audio_ms"]) == ("length", 1_600)


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
async def test_a_context_without_text_is_done_without_audio(peer: Peer, text: str) -> None:
    done = await say(peer, "t1", text)
    assert (done["reason"], done["audio_ms"], done["ttfa_ms"]) == ("end", 0, None)


@pytest.mark.parametrize("text", ["\u200b", "😀", "…", "[sighs]", "<think>no"])
async def test_text_without_words_is_a_short_silence(peer: Peer, text: str) -> None:
    """Stock clients take an answer without audio for a failure, and try again."""
    done = await say(peer, "t1", text)
    assert (done["reason"], done["audio_ms"], peer.pcm("t1")) == ("end", 20, bytes(960))


@pytest.mark.parametrize(("encoding", "rate", "bytes_ms"), [("mulaw", 8_000, 8), ("pcm_s16le", 48_000, 96)])
async def test_other_encodings_are_whole_and_in_order(peer: Peer, encoding: str, rate: int, bytes_ms: int) -> None:
    done = await say(peer, "t1", "Hello world", output={"encoding": encoding, "sample_rate": rate})
    chunks = peer.audio["t1"]
    assert abs(len(peer.pcm("t1")) - done["audio_ms"] * bytes_ms) <= 2 * bytes_ms
    assert [c.flags for c in chunks][-1] == 1
    position = 0
    for chunk in chunks:
        assert chunk.first_sample == position
        position += len(chunk.payload) * rate // (bytes_ms * 1_000)


async def test_flushes_that_wait_for_audio_are_bounded(peer: Peer) -> None:
    """Guards MAX_FLUSHES: each costs the engine memory."""
    peer.send("context.open", context_id="t1")
    for number in range(session_module.MAX_FLUSHES + 1):
        peer.send("context.flush", context_id="t1", flush_id=str(number))
    assert (await peer.until("error", "t1"))["code"] == "bad_message"
    flushed = [await peer.until("context.flushed") for _ in range(session_module.MAX_FLUSHES)]
    assert [message["flush_id"] for message in flushed] == [str(n) for n in range(session_module.MAX_FLUSHES)]
    peer.send("context.flush", context_id="t1", flush_id="again")
    assert (await peer.until("context.flushed"))["flush_id"] == "again"


async def test_an_ack_of_a_done_context_is_no_error(peer: Peer) -> None:
    await say(peer, "t1", "Hello")
    peer.messages.clear()
    peer.send("playback.ack", context_id="t1", played_ms=300)
    peer.take()
    assert peer.messages == []


async def test_many_words_come_in_messages_of_a_bounded_size(peer: Peer) -> None:
    peer.send("text.append", context_id="t1", text="word " * 500)
    await peer.until("context.started")
    peer.take()
    sizes = [len(message["words"]) for message in peer.of("words") if message["kind"] == "estimated"]
    assert sum(sizes) == 500
    assert max(sizes) <= 200


@pytest.mark.parametrize("lead_ms", [0, 120, 200])
async def test_the_smallest_lead_still_plays_without_gaps(peer: Peer, lead_ms: int) -> None:
    """Guards MIN_LEAD_MS: with a lead of one frame every frame comes 20 ms late."""
    peer.send("context.open", context_id="t1", lead_ms=lead_ms)
    peer.send("text.append", context_id="t1", text="word " * 40)
    loop = asyncio.get_running_loop()
    await peer.hear("t1", 1)
    begun = loop.time()
    await peer.hear("t1", 26)
    assert (loop.time() - begun) / (len(peer.audio["t1"]) - 1) < 0.088


async def test_pings_and_invalid_messages_are_answered(peer: Peer) -> None:
    peer.send("ping", t=5)
    assert (await peer.until("pong"))["t"] == 5
    peer.session.receive(NativeAdapter().decode("nonsense"))
    assert (await peer.until("error"))["code"] == "bad_message"


async def test_session_close_stops_all_contexts_and_requests_the_close(peer: Peer) -> None:
    peer.send("text.append", context_id="t1", text="word " * 50)
    peer.send("session.close")
    assert (await peer.until("context.done"))["reason"] == "cancelled"
    peer.take()
    assert present(peer.session.closing)[0] == 1000


async def test_draining_lets_open_contexts_finish_and_refuses_new_ones(peer: Peer) -> None:
    peer.send("text.append", context_id="t1", text="Hello world")
    peer.session.drain()
    told = await peer.until("session.draining")
    assert (told["deadline_ms"], told["reason"], told["address"]) == (30_000, "shutdown", None)
    peer.send("context.open", context_id="t2")
    assert (await peer.until("error"))["code"] == "draining"
    peer.send("context.end", context_id="t1")
    assert (await peer.until("context.done"))["reason"] == "end"
    peer.take()
    assert peer.session.closing == (1012, "the node is going away")


async def test_an_idle_session_on_a_full_node_is_asked_once_to_move() -> None:
    """It may stay: nothing is refused. One that speaks is asked when it is idle."""
    async with running(slots=4, limits={"ready_share": 0.25}, public_url="wss://fleet.example") as peer:
        node = peer.session.node
        peer.send("text.append", context_id="t1", text="Hello world")
        assert node.is_full()
        peer.send("context.end", context_id="t1")
        await peer.until("context.done")
        assert not any(message["type"] == "session.draining" for message in peer.messages)
        other = node.service.open(SpeechOptions())
        node._relief_at = 0.0
        assert node.is_full()
        newcomer = Peer(Session(node, "test"))
        node._relief_at = 0.0
        assert node.is_full()
        told = await peer.until("session.draining")
        assert (told["reason"], told["address"], told["deadline_ms"]) == ("full", "wss://fleet.example", 300_000)
        peer.write("t2", "I stay.")
        assert (await peer.until("context.done"))["reason"] == "end"
        newcomer.take()
        newcomer.session.close()
        other.stop()
        assert not peer.of("session.draining") + newcomer.of("session.draining")


async def test_a_full_node_asks_few_sessions_at_once() -> None:
    """The longest idle first: 200 callers would all come to the next node together."""
    async with running(slots=4, limits={"ready_share": 0.25}) as peer:
        node = peer.session.node
        peers = [Peer(Session(node, "test")) for _ in range(59)]
        other = node.service.open(SpeechOptions())
        for _ in range(3):
            assert node.is_full()
        for each in (peer, *peers):
            each.take()
        asked = [bool(each.of("session.draining")) for each in (peer, *peers)]
        for each in peers:
            each.session.close()
        other.stop()
        assert asked == [True] * 3 + [False] * 57


async def test_an_idle_session_requests_the_close() -> None:
    """`expire` returns the time to the next check."""
    async with running(limits={"session_idle_s": 0.05}) as peer:
        assert 0 < peer.session.expire() <= 0.05
        peer.send("context.open", context_id="t1")
        await asyncio.sleep(0.06)
        assert peer.session.expire() == 0.05  # speech counts as use
        peer.send("context.cancel", context_id="t1")
        await peer.until("context.done")
        left_s = peer.session.expire()
        assert peer.session.closing is None
        await asyncio.sleep(left_s)
        peer.session.expire()
        assert peer.session.closing is not None


async def test_a_cancel_reads_and_clears_the_playout() -> None:
    track = _Full(1_000, played_ms=130)
    async with running(track) as peer:
        peer.send("text.append", context_id="t1", text="word " * 10)
        await until(lambda: peer.session._contexts["t1"].received > 5_000)
        peer.send("context.cancel", context_id="t1")
        cancelled = await peer.until("context.cancelled")
        assert cancelled["played_ms"] == 130
        assert track.cleared == [1]


# ---------------------------------------------------------------- sessions that share the slots


@asynccontextmanager
async def beside(peer: Peer, owner: int) -> AsyncIterator[Peer]:
    """Another session on the same node."""
    session = Session(peer.session.node, "test", owner=owner)
    try:
        yield Peer(session)
    finally:
        session.close()


async def test_an_idle_context_gives_way_after_all_its_text_and_goes_on_in_a_new_one() -> None:
    async with running(slots=1) as peer, beside(peer, 2) as other:
        peer.send("text.append", context_id="t1", text="One")  # may be the start of a longer word
        await asyncio.sleep(5)
        assert (await say(other, "o1", "Somebody else."))["reason"] == "end"
        error = await peer.until("error", "t1")
        assert (error["code"], error["fatal"]) == ("starved", False)
        assert "others wait" in error["message"]
        done = await peer.until("context.done", "t1")
        assert done["audio_ms"] == len(peer.pcm("t1")) / 48 > 0
        assert (await say(peer, "t2", "Two."))["reason"] == "end"
        ends = [entry for entry in peer.order if entry.startswith("context.done")]
        assert ends == ["context.done t1", "context.done t2"]
        gave_way = peer.session.node.metrics.gave_way.labels("starved")
        assert gave_way._value.get() == 1


async def test_a_context_that_speaks_gives_way_to_another_owner_and_no_audio_follows() -> None:
    async with running(slots=2, lead_ms=400) as peer, beside(peer, 2) as other:
        for context_id in ("t1", "t2"):
            peer.write(context_id, "A long text. " * 100)
        while peer.session.is_reading:  # as the reader of a connection does
            peer.session.go_on()
        await asyncio.sleep(2)
        assert (await say(other, "o1", "Somebody else."))["reason"] == "end"
        error = await peer.until("error")
        assert error["code"] == "at_capacity"
        assert 100 <= error["retry_after_ms"] <= 30_000
        gone = error["context_id"]
        assert (await peer.until("context.done", gone))["reason"] == "error"
        await asyncio.sleep(1)
        peer.take()
        told = [entry for entry in peer.order if entry.endswith(f" {gone}")]
        assert told[-2:] == [f"error {gone}", f"context.done {gone}"]
        assert sum(entry.startswith("context.done") for entry in peer.order) == 1, "the other does not speak on"


LONG = "Words of a long text, one after another. " * 90


async def test_a_long_text_is_read_in_slices_and_what_follows_waits_for_its_end(peer: Peer, slices: list[int]) -> None:
    """Reading one at once would hold the event loop for tens of milliseconds. Guards `Session._read`."""
    peer.session.clock = lambda: 0.0  # a late machine would obey the text later
    peer.send("context.open", context_id="a")
    peer.send("text.append", context_id="a", text=LONG)
    peer.send("text.append", context_id="b", text="short")
    peer.send("context.end", context_id="b")
    peer.send("context.cancel", context_id="a")
    assert slices == [SLICE_CHARS]
    cancelled = await peer.until("context.cancelled", "a")
    assert cancelled["heard_text"] + cancelled["unheard_text"] == LONG
    assert (await peer.until("context.done", "a"))["reason"] == "cancelled"
    assert (await peer.until("context.done", "b"))["reason"] == "end"
    assert max(slices) == SLICE_CHARS
    assert sum(slices) == len(LONG) + len("short")
    assert not peer.session.is_reading


async def test_a_long_text_is_spoken_as_one_that_came_in_pieces(peer: Peer) -> None:
    text = LONG[:1_000]
    assert (await say(peer, "a", text, lead_ms=None))["reason"] == "end"
    peer.send("context.open", context_id="b", lead_ms=None)
    for at in range(0, len(text), 7):
        peer.send("text.append", context_id="b", text=text[at : at + 7])
    peer.send("context.end", context_id="b")
    await peer.until("context.done", "b")
    assert peer.pcm("a") == peer.pcm("b")


async def test_the_rest_of_a_text_ends_with_its_context(peer: Peer) -> None:
    """A context that fails while its text is read is not opened anew by the rest."""
    peer.send("text.append", context_id="a", text=LONG)
    peer.session.node.service.engines[0]._on_lost("scripted")
    peer.send("context.flush", context_id="a")
    assert (await peer.until("error", "a"))["code"] == "engine_lost"
    assert (await peer.until("error", "a"))["code"] == "unknown_context"
    assert not peer.session.is_speaking
    assert not peer.session.is_reading


async def test_what_waits_for_a_text_is_bounded(peer: Peer) -> None:
    peer.send("text.append", context_id="a", text=LONG)
    for _ in range(MAX_BEHIND // 4_100):
        peer.session.receive([Append("b", "x" * 4_000)], 4_000)
    with pytest.raises(SlowConsumer):
        peer.session.receive([Append("b", "x" * 4_000)], 4_000)


async def test_what_came_behind_a_text_is_obeyed_in_slices(peer: Peer, slices: list[int]) -> None:
    """A burst of messages may have come over WebRTC meanwhile."""
    peer.session.clock = lambda: 0.0
    peer.session.receive([Append("a", LONG[: SLICE_CHARS + 1]), *[Append("b", "word ")] * 20])
    peer.session.go_on()
    assert slices == [SLICE_CHARS, 1] + [5] * FOLLOWING
    while peer.session.is_reading:
        peer.session.go_on()
    assert sum(slices) == SLICE_CHARS + 1 + 20 * 5


async def test_texts_that_take_long_have_a_slice_together(peer: Peer, slices: list[int]) -> None:
    """Each of them may be as long as what is read at once. Guards the clock of `Session._obey_some`."""
    peer.session.clock = (SLICE_S * 0.4 * turn for turn in itertools.count()).__next__
    peer.session.receive([Append("a", "word ")] * 20)
    peer.session.go_on()
    assert 0 < len(slices) < FOLLOWING // 2
    while peer.session.is_reading:
        peer.session.go_on()
    assert sum(slices) == 20 * 5
