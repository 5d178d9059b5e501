"""What an utterance tells that goes on at another node: its own rules, with nodes that say what a test has them say."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tts.client.connection import ConnectionLost
from agent_tts.client.resuming import MARGIN_S, MAX_LOSSES, ResumableUtterance
from agent_tts.errors import SpeechError
from agent_tts.messages import Audio, Cancelled, Finished, Flushed, Mark, Word, Words
from agent_tts.protocol.utterance import UtteranceEvent
from tests.support import present

LOST = ConnectionLost("lost")
RATE = 8_000  # Hz of mulaw: 8 bytes a millisecond
OUTPUT = {"encoding": "mulaw", "sample_rate": RATE}


class Part:
    """A context on a node; records what it is told."""

    def __init__(self, context_id: str) -> None:
        self.context_id = context_id
        self.said: list[Any] = []
        self.script: deque[UtteranceEvent | Exception | None] = deque()
        self.started: Any = object()
        self.error: SpeechError | None = None
        self.cut = Cancelled(context_id, 40, 400, "x", "y")

    def write(self, text: str) -> None:
        self.said.append(text)

    def flush(self, flush_id: str) -> None:
        self.said.append(("flush", flush_id))

    def end(self) -> None:
        self.said.append("END")

    def ack(self, played_ms: float) -> None:
        self.said.append(("ack", played_ms))

    def stop(self, played_ms: float | None = None) -> None:
        self.said.append(("stop", played_ms))

    async def cancel(self) -> Cancelled[str]:
        return self.cut

    async def next(self) -> UtteranceEvent | None:
        while not self.script:
            await asyncio.sleep(3_600)
        event = self.script.popleft()
        if isinstance(event, Exception):
            raise event
        return event


class Fleet:
    """Nodes, of which each has one part of the utterance."""

    def __init__(self, text: str = "", session: dict[str, Any] | None = None, **options: Any) -> None:
        self.parts: list[Part] = []
        self.options: list[dict[str, Any]] = []
        self.session = {"output": OUTPUT} if session is None else session
        self.left: list[Any] = []  # the connections that were given up
        self.nodes: list[Any] = []
        self.refusal: SpeechError | None = None
        self.speech = ResumableUtterance(self.node(), self.renew, **options)
        if text:
            self.speech.write(text)

    def node(self) -> Any:
        info = SimpleNamespace(frame_ms=80)
        self.nodes.append(SimpleNamespace(session=self.session, info=info, begin=self.begin))
        return self.nodes[-1]

    def begin(self, **options: Any) -> Any:
        self.options.append(options)
        self.parts.append(Part(f"c{len(self.parts)}"))
        return self.parts[-1]

    async def renew(self, lost: Any) -> Any:
        self.left.append(lost)
        if self.refusal is not None:
            raise self.refusal
        return self.node()

    async def told(self, *script: UtteranceEvent | Exception | None, limit: int = 100) -> list[UtteranceEvent]:
        """What the reader gets at once, when the part that speaks has this to say."""
        self.parts[-1].script.extend(script)
        events: list[UtteranceEvent] = []
        while len(events) < limit:
            try:
                async with asyncio.timeout(0.001):
                    event = await self.speech.next()
            except TimeoutError:
                break
            if event is None:
                break
            events.append(event)
        return events


def audio(start: int, end: int) -> Audio[str]:
    """From and to so many hundredths of a second."""
    return Audio("c", b"a" * 80 * (end - start), start * 80)


def words(*times: tuple[str, int, int, int], kind: Any = "aligned") -> Words[str]:
    """Each a text, its place, its start and its end in hundredths of a second."""
    return Words(
        "c", tuple(Word(text, start * 10, end * 10, at, at + len(text)) for text, at, start, end in times), kind
    )


def spans(events: list[UtteranceEvent]) -> list[tuple[int, int]]:
    """Where each audio begins and ends, in hundredths of a second."""
    found = [(event.first_sample, len(event.payload)) for event in events if isinstance(event, Audio)]
    return [(first // 80, (first + size) // 80) for first, size in found]


ONE, TWO = ("one", 0, 0, 100), ("two", 4, 100, 200)


async def lost(*before: UtteranceEvent) -> Fleet:
    """An utterance of "one two three" whose node is lost behind "one", 1 s in; the next node speaks the rest."""
    fleet = Fleet("one two three")
    await fleet.told(words(ONE, TWO), audio(0, 100), *before, audio(100, 150), LOST)
    assert len(fleet.parts) == 2
    return fleet


# ---------------------------------------------------------------- a loss


async def test_the_rest_of_the_text_is_said_from_the_end_of_the_last_whole_word() -> None:
    fleet = Fleet("one two ", timestamps="word", seed=3)
    fleet.speech.write("three")
    first = await fleet.told(words(ONE, TWO), audio(0, 100), audio(100, 150), LOST)
    assert spans(first) == [(0, 100)]  # the half of "two" is dropped
    assert fleet.left == fleet.nodes[:1]
    assert fleet.options == [{"timestamps": "word", "seed": 3}] * 2
    assert fleet.parts[1].said == [" two three"]
    fleet.speech.write("!")
    fleet.speech.end()
    assert fleet.parts[1].said == [" two three", "!", "END"]
    again = words(("two", 1, 0, 90), ("three!", 5, 90, 150))
    second = await fleet.told(again, audio(0, 150), Finished("c", "end", audio_ms=1_500), None)
    assert spans(second) == [(100, 190), (190, 250)] or spans(second) == [(100, 250)]
    assert second[-1] == fleet.speech.done == Finished("c", "end", audio_ms=2_500)
    assert [(word.word, word.start_ms, word.end_ms, word.char_start, word.char_end) for word in fleet.speech.words] == [
        ("one", 0, 1_000, 0, 3),
        ("two", 1_000, 1_900, 4, 7),
        ("three!", 1_900, 2_500, 8, 14),
    ]
    assert fleet.speech.context_id == "c0"
    assert [event.id for event in second if isinstance(event, Words)] == ["c0"]


@pytest.mark.parametrize("come_ms", [199, 200])
async def test_a_word_is_whole_when_its_last_sample_has_come(come_ms: int) -> None:
    fleet = Fleet("one two three")
    await fleet.told(words(ONE, TWO), audio(0, 100), audio(100, come_ms), LOST)
    assert fleet.parts[1].said == [" three" if come_ms == 200 else " two three"]


async def test_estimated_words_are_no_place_to_go_on_from() -> None:
    fleet = Fleet("one two")
    told = await fleet.told(words(ONE, TWO, kind="estimated"), audio(0, 150), LOST)
    assert spans(told) == [(0, 150)]
    assert fleet.parts[1].said == ["one two"]
    assert [word.word for word in fleet.speech.words] == ["one", "two"]


async def test_the_reader_gets_whole_words_with_what_stands_before_them() -> None:
    fleet = Fleet("one two three")
    told = await fleet.told(words(ONE, TWO), audio(0, 60))
    assert spans(told) == [(0, 60)]  # nothing was heard yet: it does not wait
    told = await fleet.told(audio(60, 160), Mark("c", "m", 1_600, 7))
    assert spans(told) == [(60, 100)]
    told = await fleet.told(audio(160, 260))
    assert [type(event) for event in told[:2]] == [Audio, Mark]
    assert spans(told) == [(100, 160), (160, 260)]


async def test_a_cut_chunk_keeps_its_flags_at_its_end() -> None:
    fleet = Fleet()
    whole = audio(0, 150)._replace(flags=1)
    _, first = await fleet.told(words(ONE, TWO), whole, limit=2)
    assert isinstance(first, Audio)
    assert (first.flags, spans([first])) == (0, [(0, 100)])
    (rest,) = await fleet.told(Finished("c", "length", audio_ms=1_500), limit=1)
    assert isinstance(rest, Audio)
    assert (rest.flags, spans([rest])) == (1, [(100, 150)])


async def test_a_word_that_the_listener_waits_for_is_given_in_parts() -> None:
    """As soon as `MARGIN_S` of what was given is left to be heard."""
    fleet = Fleet()
    told = await fleet.told(words(ONE, TWO), audio(0, 100), audio(100, 130))
    assert spans(told) == [(0, 100)]
    loop = asyncio.get_running_loop()
    began, event = loop.time(), await fleet.speech.next()
    assert spans([present(event)]) == [(100, 130)]
    assert loop.time() - began == pytest.approx(1 - MARGIN_S, abs=0.02)
    await asyncio.sleep(10)  # the listener has heard all, and waits
    assert spans(await fleet.told(audio(130, 180))) == [(130, 180)]
    assert await fleet.told(audio(180, 190)) == []  # half a second is left, counted from what it heard last
    assert spans([present(await fleet.speech.next())]) == [(180, 190)]
    assert loop.time() - began == pytest.approx(1 - MARGIN_S + 10 + 0.5 - MARGIN_S, abs=0.02)


# ---------------------------------------------------------------- what comes after a loss


async def test_a_mark_is_told_once_and_counted_from_the_beginning() -> None:
    fleet = await lost(Mark("c", "heard", 1_000, 3))
    assert fleet.speech._marks == {3}
    told = await fleet.told(Mark("c", "heard", 0, 0), Mark("c", "new", 200, 4), audio(0, 10))
    assert [event for event in told if isinstance(event, Mark)] == [Mark("c", "new", 1_200, 7)]


async def test_flushes_that_were_not_answered_are_sent_again() -> None:
    fleet = Fleet()
    speech = fleet.speech
    for text, name in (("one ", "a"), ("two ", "b"), ("three ", "c")):
        speech.write(text)
        speech.flush(name)
    speech.write("four")
    speech.end()
    three = words(ONE, TWO, ("three", 8, 200, 300))
    told = await fleet.told(three, audio(0, 100), Flushed("c", "a", 1_000), audio(100, 250), LOST)
    assert [event for event in told if isinstance(event, Flushed)] == [Flushed("c", "a", 1_000)]
    assert fleet.parts[1].said == [" ", ("flush", "b"), "three ", ("flush", "c"), "four", "END"]
    told = await fleet.told(Flushed("c", "b", 300), audio(0, 10))
    assert told[0] == Flushed("c", "b", 2_300)
    await fleet.told(LOST)
    assert fleet.parts[2].said[1] == ("flush", "c")


async def test_a_flush_before_the_place_repeats_no_text() -> None:
    fleet = Fleet("one")
    fleet.speech.flush("a")
    fleet.speech.write(" two three")
    assert fleet.parts[0].said == ["one", ("flush", "a"), " two three"]
    await fleet.told(words(ONE, TWO), audio(0, 200), LOST)
    assert fleet.parts[1].said == ["", ("flush", "a"), " three"]


async def test_stopping_and_what_was_played_count_from_the_beginning() -> None:
    for played_ms, there in ((3_500.0, 2_500.0), (400.0, 0.0), (None, None)):
        fleet = await lost()
        fleet.speech.stop(played_ms)
        assert fleet.parts[1].said[-1] == ("stop", there)


async def test_what_the_next_node_cannot_know_is_not_acknowledged_there() -> None:
    fleet = await lost()
    for played_ms in (999.0, 1_000.0, 1_300.0):
        fleet.speech.ack(played_ms)
    assert [said for said in fleet.parts[1].said if said[0] == "ack"] == [("ack", 0.0), ("ack", 300.0)]


@pytest.mark.parametrize(("played_ms", "expected"), [(None, 1_040), (1_160.4, 1_160)])
async def test_a_cancel_after_a_loss_tells_what_was_heard_of_the_whole(played_ms: float | None, expected: int) -> None:
    fleet = await lost()
    await fleet.told(words(("two", 1, 0, 20), ("three", 5, 20, 30)), audio(0, 30))
    texts = ("one two", " three") if played_ms else ("one", " two three")
    cut = await fleet.speech.cancel(played_ms)
    assert cut == Cancelled("c0", expected, 1_400, *texts)


async def test_a_cancel_without_a_loss_is_the_nodes_own() -> None:
    fleet = Fleet("one")
    assert await fleet.speech.cancel(12.0) is fleet.parts[0].cut
    assert fleet.parts[0].said == ["one", ("stop", 12.0)]


async def test_no_audio_follows_a_stop() -> None:
    fleet = Fleet()
    await fleet.told(words(ONE, TWO), audio(0, 100))
    await fleet.told(audio(100, 150))
    fleet.speech.stop()
    told = await fleet.told(None)
    assert not spans([event for event in told if isinstance(event, Audio)])


async def test_what_was_for_the_reader_is_told_after_a_stop_but_for_audio() -> None:
    fleet = Fleet()
    fleet.speech._events.extend([audio(0, 10), Mark("c", "m", 0, 0)])
    fleet.speech._held.append(audio(10, 20))
    fleet.speech.stop()
    assert await fleet.told(None) == [Mark("c", "m", 0, 0)]


async def test_no_text_follows_an_end_or_a_stop() -> None:
    for act in ("end", "stop"):
        fleet = Fleet("one")
        getattr(fleet.speech, act)()
        fleet.speech.write("two")
        fleet.speech.flush("f")
        assert "two" not in fleet.parts[0].said
        assert ("flush", "f") not in fleet.parts[0].said
        assert "".join(fleet.speech._text) == "one"


# ---------------------------------------------------------------- the end


async def test_a_text_that_was_said_ends_without_another_node() -> None:
    fleet = Fleet("one two \n")
    fleet.speech.end()
    told = await fleet.told(words(ONE, TWO), audio(0, 200), LOST)
    assert told[-1] == Finished("c0", "end", audio_ms=2_000)
    assert len(fleet.parts) == 1


@pytest.mark.parametrize("what", ["open", "flush", "text"])
async def test_what_is_not_all_said_goes_on(what: str) -> None:
    fleet = Fleet("one two" if what != "text" else "one two!")
    if what == "flush":
        fleet.speech.flush("f")
    if what != "open":
        fleet.speech.end()
    await fleet.told(words(ONE, TWO), audio(0, 200), LOST)
    assert len(fleet.parts) == 2


async def test_a_text_goes_to_so_many_nodes_only() -> None:
    fleet = Fleet("one two three")
    for _ in range(MAX_LOSSES):
        await fleet.told(LOST)
    assert len(fleet.parts) == MAX_LOSSES + 1
    with pytest.raises(ConnectionLost):
        await fleet.told(LOST)


@pytest.mark.parametrize(
    ("session", "options", "resumes"),
    [
        ({"output": OUTPUT}, {"timestamps": "none"}, False),
        ({"output": OUTPUT, "timestamps": "none"}, {}, False),
        ({"output": OUTPUT, "timestamps": "none"}, {"timestamps": "word"}, True),
        ({"output": {"encoding": "mp3"}}, {}, False),
        ({"output": {"encoding": "mp3"}}, {"output": {"encoding": "alaw"}}, True),
        ({"output": None}, {}, True),
        ({}, {"output": {"encoding": "ogg_opus"}}, False),
        ({}, {"output": {"encoding": "opus", "sample_rate": 48_000}}, True),
        ({}, {}, True),
    ],
)
async def test_only_what_can_be_joined_goes_on(session: dict[str, Any], options: dict[str, Any], resumes: bool) -> None:
    fleet = Fleet("one", session, **options)
    if resumes:
        assert await fleet.told(LOST) == []
        assert len(fleet.parts) == 2
    else:
        told = await fleet.told(words(ONE, TWO), audio(0, 50), audio(50, 150))
        assert len(spans(told)) == 2  # nothing is held back
        with pytest.raises(ConnectionLost):
            await fleet.told(LOST)


@pytest.mark.parametrize(("encoding", "width"), [("pcm_s16le", 2), ("pcm_f32le", 4), ("alaw", 1)])
async def test_a_sample_has_the_bytes_of_its_encoding(encoding: str, width: int) -> None:
    fleet = Fleet(session={"output": {"sample_rate": RATE}}, output={"encoding": encoding})
    chunk = Audio("c", bytes(80 * 150 * width))
    told = await fleet.told(words(ONE, TWO), chunk, limit=2)
    first, *_ = [event for event in told if isinstance(event, Audio) and event.payload]
    assert len(first.payload) == 80 * 100 * width


async def test_samples_are_counted_at_24_khz_unless_another_rate_was_asked_for() -> None:
    fleet = Fleet(session={})
    chunk = Audio("c", bytes(240 * 2 * 150))
    told = await fleet.told(words(ONE, TWO), chunk, limit=2)
    first, *_ = [event for event in told if isinstance(event, Audio) and event.payload]
    assert len(first.payload) == 240 * 2 * 100


async def test_the_error_of_a_search_without_a_node_is_told() -> None:
    fleet = Fleet("one")
    fleet.refusal = SpeechError("none left")
    with pytest.raises(SpeechError, match="none left"):
        await fleet.told(LOST)


async def test_who_stops_meanwhile_does_not_go_on() -> None:
    fleet = Fleet("one")

    async def stops(lost: Any) -> Any:
        fleet.speech.stop()
        return fleet.node()

    fleet.speech._renew = stops
    with pytest.raises(ConnectionLost):
        await fleet.told(LOST)
    assert len(fleet.parts) == 1
    with pytest.raises(ConnectionLost):  # nor who has stopped before
        await fleet.told(LOST)
    assert len(fleet.parts) == 1


async def test_its_start_and_error_are_those_of_the_part_that_speaks() -> None:
    fleet = await lost()
    fleet.parts[1].error = SpeechError("now")
    assert fleet.speech.started is fleet.parts[1].started
    assert fleet.speech.error is fleet.parts[1].error


# ---------------------------------------------------------------- Opus

PACKET = b"\xff\x04" + b"aabbccdd"  # four frames of 20 ms


async def test_opus_is_given_up_to_the_frame_where_a_word_ends() -> None:
    """To half a frame, behind a second of packets that are all given."""
    fleet = Fleet("one two", {"output": {"encoding": "opus", "sample_rate": 8_000}})
    packets = [Audio("c", PACKET, number * 640, flags=1) for number in range(13)]
    told = await fleet.told(words(("one", 0, 0, 102), ("two", 4, 102, 200)), *packets, LOST)
    given = [event for event in told if isinstance(event, Audio)]
    assert [(event.payload, event.first_sample, event.flags) for event in given[12:]] == [
        (b"\xfcaa", 7_680, 0),
        (b"\xfcbb", 7_840, 0),
        (b"\xfccc", 8_000, 0),
    ]
    assert fleet.parts[1].said == [" two"]
    (event,) = [each for each in await fleet.told(Audio("c", PACKET)) if isinstance(each, Audio)]
    assert event.first_sample == 8_160
