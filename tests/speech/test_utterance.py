"""One utterance without an engine: its events for the listener, and its commands to the engine."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from agent_tts.directives import Say
from agent_tts.engine_info import FRAME_BYTES, EngineInfo
from agent_tts.errors import EngineLost
from agent_tts.messages import (
    FLAG_FLUSH,
    FLAG_LAST,
    Append,
    Audio,
    Cancel,
    Credit,
    End,
    EngineCommand,
    Finished,
    Flushed,
    RequestEvent,
    Started,
    Word,
    Words,
)
from agent_tts.options import EngineOptions
from agent_tts.protocol.options import OutputFormat
from agent_tts.speech.routing import Resolved
from agent_tts.speech.utterance import SETTLED_AT_ONCE, Listener, Told, Utterance, WordsMode
from agent_tts.speech.words.peaks import peaks
from agent_tts.speech.words.timeline import WordTimeline
from agent_tts.text.entries import Lexicon
from agent_tts.voices.library import StoredLexicon
from tests.support import ended, present, typed

LOUD = b"\x00\x20" * (FRAME_BYTES // 2)
AUDIO = Audio(7, LOUD)
END = Finished(7, "end", busy_ms=8.0)


class Bench:
    """An utterance, its commands, and a method to give it events."""

    def __init__(
        self,
        *,
        words: WordsMode = "told",
        aligned: bool = False,
        output: OutputFormat | None = None,
        lexicon: dict[str, str] | StoredLexicon | None = None,
        window: int = 80,
    ) -> None:
        self.sent: list[EngineCommand] = []
        info = EngineInfo("tone", "tone", 1, (), "tone", {"en": "en"}, aligns_words=aligned)
        asked = (lexicon,) if lexicon else ()
        lexicons = tuple(Lexicon.of(each) if isinstance(each, dict) else each for each in asked)
        self.now = 0.0
        listener = Listener(output=output or OutputFormat(), words=words, context_id="c", clock=lambda: self.now)
        self.utterance = Utterance(
            Resolved(EngineOptions(language="en"), None, lexicons, True), info, window, 0, listener
        )
        self.utterance.settle(7, 0, self._send)

    def _send(self, command: EngineCommand, *, waits: bool = False) -> None:
        self.sent.append(command)

    def deliver(self, *events: RequestEvent) -> None:
        for event in events:
            self.utterance.deliver(event)

    def hear(self, *events: RequestEvent) -> list[Told]:
        """The listener's events after these events of the engine."""
        self.deliver(*events)
        told: list[Told] = []
        while (event := self.utterance.poll()) is not None:
            told.append(event)
        return told

    def write(self, text: str) -> list[Told]:
        """The listener's events after this text."""
        self.utterance.write(text)
        return self.hear()


def words_of(told: list[Told]) -> list[Word]:
    return [word for event in told if isinstance(event, Words) for word in event.words]


def test_words_before_the_start_are_sent_right_after_it() -> None:
    bench = Bench()
    assert bench.write("Two words ") == []
    started, words = bench.hear(Started(7, 12))
    assert started == Started("c", 12, 1)
    assert isinstance(words, Words)
    assert [word.word for word in words.words] == ["Two", "words"]
    assert [word.word for word in words_of(bench.write("more "))] == ["more"]


async def test_text_waits_for_the_lexicon_of_its_voice_in_its_order() -> None:
    bench, plain = Bench(lexicon=StoredLexicon("bob", 9, (0, 0))), Bench(lexicon={"gif": "jif"})
    for each in (bench, plain):
        each.utterance.write("A gif ")
        each.utterance.flush("f")
        each.utterance.write("and one.")
        each.utterance.end()
        each.utterance.write("too late")
    assert bench.utterance.waits_for_lexicons
    assert bench.sent == []
    assert (bench.utterance.ended, bench.utterance.flushes) == (True, 1)
    bench.utterance.look_up([Lexicon.of({"gif": "jif"})])
    while bench.utterance.waits_for_lexicons:
        await asyncio.sleep(0)
    assert bench.sent == plain.sent
    assert isinstance(bench.sent[-1], End)


def test_what_waits_for_a_lexicon_is_unheard_text() -> None:
    bench = Bench(lexicon=StoredLexicon("bob", 9, (0, 0)))
    bench.utterance.write("One <break/>two.")
    bench.utterance.flush("")
    assert bench.utterance.cut(0).unheard_text == "One two."


def test_what_waits_for_a_lexicon_is_not_read_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of 20 000 characters may wait. Mutation: `cut` does what waits."""
    bench = Bench(lexicon=StoredLexicon("bob", 9, (0, 0)))
    for _ in range(80):
        bench.utterance.write("a " * 128)
    monkeypatch.setattr(WordTimeline, "append", None)
    assert len(bench.utterance.cut(0).unheard_text) == 80 * 256
    assert not bench.utterance.waits_for_lexicons or not bench.utterance._late


@pytest.mark.parametrize("complete", ["flush", "end"])
def test_the_engine_gets_what_is_said_and_the_listener_what_is_written(complete: str) -> None:
    bench = Bench(lexicon={"new york": "nyoo york"})
    bench.hear(Started(7, 0))
    for text in ("In New", " York, new", " <break/>"):
        bench.utterance.write(text)
    bench.utterance.flush("") if complete == "flush" else bench.utterance.end()
    contents = [command.content for command in bench.sent if isinstance(command, Append)]
    assert contents[:3] == ["In ", Say("New York", "nyoo york"), ", "]
    assert "".join(content for content in contents if isinstance(content, str)).rstrip() == "In , new"
    assert [(word.word, word.char_start) for word in words_of(bench.hear())][:3] == [
        ("In", 0),
        ("New", 3),
        ("York,", 7),
    ]
    assert bench.utterance.cut(0).unheard_text.startswith("In New York, new")


def test_what_is_said_counts_as_text() -> None:
    """Otherwise a lexicon would be a way around the limit of a context."""
    bench = Bench(lexicon={"a": "b" * 200})
    bench.utterance.write("a a c")
    assert bench.utterance.chars == 5 + 2 * 199


def test_at_the_end_words_get_their_final_times_in_slices() -> None:
    """Those of a long text take a tenth of a second together. Guards `Utterance._tell_rest`."""
    bench = Bench()
    bench.hear(Started(7, 0))
    bench.write("word " * 200)
    bench.utterance.end()
    told = bench.hear(AUDIO, END)
    final = [event.words for event in told if isinstance(event, Words) and event.kind == "aligned"]
    assert max(map(len, final)) == SETTLED_AT_ONCE
    assert sum(map(len, final)) == 200
    assert isinstance(told[-1], Finished)
    starts = [word.start_ms for words in final for word in words]
    assert starts == sorted(starts)


def test_the_last_audio_is_flagged_and_done_follows() -> None:
    bench = Bench(words="none")
    first, last, done = bench.hear(AUDIO, AUDIO, END)
    assert isinstance(first, Audio)
    assert isinstance(last, Audio)
    assert (first.last, last.last, last.first_sample) == (False, True, FRAME_BYTES // 2)
    assert done == Finished("c", "end", busy_ms=8.0, audio_ms=160, rtf=0.05, context_no=1)
    assert bench.utterance.poll() is None


def test_a_late_end_is_an_empty_chunk_with_the_last_flag() -> None:
    bench = Bench(words="none")
    bench.hear(AUDIO)
    chunk, done = bench.hear(END)
    assert isinstance(chunk, Audio)
    assert (chunk.payload, chunk.last) == (b"", True)
    assert isinstance(done, Finished)


def test_a_flush_marks_its_audio_and_is_answered() -> None:
    bench = Bench()
    bench.utterance.write("One")
    bench.utterance.flush("f1")
    assert bench.utterance.flushes == 1
    *_, flushed = told = bench.hear(AUDIO, Flushed(7, "f1"))
    assert flushed == Flushed("c", "f1", 80)
    assert [event.flush for event in told if isinstance(event, Audio)] == [True]
    assert bench.utterance.flushes == 0


def test_words_of_an_aligning_engine_have_its_times() -> None:
    bench = Bench(aligned=True)
    bench.hear(Started(7, 0))
    assert bench.write("One two") == []
    words = words_of(bench.hear(Words(7, (Word("", 20, 60, 0, 3),))))
    assert [(word.word, word.start_ms, word.end_ms) for word in words] == [("One", 20, 60)]


def test_audio_in_another_format_is_encoded_and_flushed_at_the_end() -> None:
    bench = Bench(words="none", output=OutputFormat(encoding="opus", sample_rate=48_000))
    half = Audio(7, LOUD[: len(LOUD) // 2])
    assert bench.hear(half) == []
    chunk, done = bench.hear(END)
    assert isinstance(chunk, Audio)
    assert chunk.last
    assert 0 < len(chunk.payload) < 1_000
    assert isinstance(done, Finished)


def test_a_long_piece_is_encoded_80_ms_at_a_time() -> None:
    """So that others have their turn in between: an engine without a pace gives half a second of audio at once."""
    bench = Bench(output=OutputFormat(encoding="ogg_opus", sample_rate=48_000))
    bench.write("One two three. ")
    whole = Audio(7, LOUD * 5 + LOUD[:480], peaks=peaks(LOUD * 5 + LOUD[:480]))
    bench.deliver(Started(7, 0), whole, Flushed(7, "f"), END)
    encoder, encoded = bench.utterance._encoder, []
    assert encoder is not None
    encode = encoder.encode
    encoder.encode = lambda pcm: encoded.append(len(pcm)) or encode(pcm)  # pyrefly: ignore
    lengths = []
    while bench.utterance.poll() is not None:
        lengths.append(len(encoded))
    assert encoded == [len(LOUD)] * 5 + [480]
    assert max(after - before for before, after in itertools.pairwise([0, *lengths])) == 1
    ahead = Bench(output=OutputFormat(encoding="ogg_opus", sample_rate=48_000))
    ahead.write("One two three. ")
    pieces = [Audio(7, piece, peaks=peaks(piece)) for piece in [LOUD] * 5 + [LOUD[:480]]]
    one_by_one = ahead.hear(Started(7, 0), *pieces, Flushed(7, "f"), END)
    again = Bench(output=OutputFormat(encoding="ogg_opus", sample_rate=48_000))
    again.write("One two three. ")
    at_once = again.hear(Started(7, 0), whole, Flushed(7, "f"), END)
    assert one_by_one == at_once
    flags = [event.flags for event in at_once if isinstance(event, Audio)]
    assert flags[-1] == FLAG_LAST | FLAG_FLUSH
    assert not any(flags[:-1])


def test_a_stop_within_a_long_piece_drops_the_rest() -> None:
    bench = Bench(words="none", output=OutputFormat(encoding="opus", sample_rate=48_000), window=4)
    bench.deliver(Started(7, 0), Audio(7, LOUD * 6))
    told = [bench.utterance.poll() for _ in range(3)]
    assert [type(event) for event in told] == [Started, Audio, Audio]
    assert bench.utterance.audio_ms == 160
    bench.utterance.stop()
    (done,) = bench.hear(END)
    assert typed(Finished, done).reason == "cancelled"
    assert bench.utterance.audio_ms == 160


@pytest.mark.parametrize("acked", [None, 40])
def test_a_cut_reports_the_heard_text(acked: int | None) -> None:
    """Without an acknowledgement all sent audio counts; with one, also the time since it."""
    bench = Bench()
    bench.utterance.write("One two three four five six seven eight. ")
    bench.hear(Started(7, 0), AUDIO, AUDIO)
    if acked is not None:
        bench.utterance.ack(acked)
        bench.now = 0.05
    cut = bench.utterance.cut()
    assert (cut.played_ms, cut.generated_ms) == (160 if acked is None else 90, 160)
    assert cut.heard_text + cut.unheard_text == "One two three four five six seven eight. "
    assert bench.sent[-1] == Cancel(7)
    (done,) = bench.hear(AUDIO, END)
    assert typed(Finished, done).reason == "cancelled"


def test_audio_that_was_not_taken_does_not_count() -> None:
    bench = Bench(words="kept")
    bench.deliver(Audio(7, 3 * LOUD))
    assert isinstance(bench.utterance.poll(), Audio)
    bench.utterance.stop()
    assert bench.utterance.audio_ms == bench.utterance.played_ms() == 80


def test_a_stop_before_the_last_event_is_taken_is_still_one() -> None:
    """All has come and is told, but for the end."""
    bench = Bench(words="none")
    bench.deliver(AUDIO, END)
    assert isinstance(bench.utterance.poll(), Audio)
    bench.utterance.stop()
    (done,) = bench.hear()
    assert isinstance(done, Finished)
    assert (done.reason, done.audio_ms) == ("cancelled", 80)


def test_a_stopped_utterance_has_its_figures_without_a_poll() -> None:
    """The reader may have gone."""
    bench = Bench()
    bench.utterance.stop()
    assert bench.utterance.done is None
    bench.deliver(Finished(7, "error", code="internal"))
    assert present(bench.utterance.done).reason == "cancelled"


# ------------------------------------------------------------ credit


@pytest.mark.parametrize(("window", "grant"), [(2, 1), (15, 1), (16, 2), (50, 6)])
def test_credit_is_granted_in_eighths_of_the_window(window: int, grant: int) -> None:
    """Ungranted credit leaves the engine most of its window. Fails if whole windows are granted."""
    bench = Bench(words="none", window=window)
    for taken in range(1, 3 * window + 1):
        bench.hear(AUDIO)
        granted = sum(command.frames for command in bench.sent if isinstance(command, Credit))
        assert 0 <= taken - granted <= window // 8
    assert bench.sent == [Credit(7, grant)] * (3 * window // grant)


def test_credit_is_counted_in_frames() -> None:
    bench = Bench(words="none", window=16)
    for frames in (1, 4, 0.5, 4):
        bench.hear(Audio(7, bytes(int(frames * FRAME_BYTES))))
    assert bench.sent == [Credit(7, 5), Credit(7, 5)]


def test_a_stopped_utterance_grants_no_more_credit() -> None:
    bench = Bench(words="none", window=2)
    bench.deliver(AUDIO)
    bench.utterance.stop()
    assert bench.hear(AUDIO) == []
    assert bench.sent == [Cancel(7)]
    assert bench.utterance.received == FRAME_BYTES


# ------------------------------------------------------------ with a reader in the same loop


async def test_a_local_reader_gets_words_audio_and_the_end() -> None:
    bench = Bench()
    local = bench.utterance
    local.write("One.")
    local.end()
    assert bench.sent == [Append(7, "One."), End(7)]
    bench.deliver(Started(7, 0), AUDIO, END)
    kinds: list[object] = [type(event) async for event in local.events()]
    assert kinds[0] is Words
    assert (kinds[-1], kinds.count(Audio)) == (Finished, 1)
    assert await local.next() is None
    assert local.done == Finished("c", "end", busy_ms=8.0, audio_ms=80, rtf=0.1, context_no=1)


async def test_a_failure_is_raised_after_all_events() -> None:
    bench = Bench(words="none")
    local = bench.utterance
    bench.deliver(AUDIO)
    bench.deliver(Finished(7, "error", code="engine_lost", message="gone"))
    assert isinstance(await local.next(), Audio)
    assert isinstance(await local.next(), Finished)
    with pytest.raises(EngineLost, match="gone"):
        await local.next()
    assert isinstance(local.error, EngineLost)


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_only_the_end_follows_a_stop(how: str) -> None:
    bench = Bench(words="none")
    local = bench.utterance
    bench.deliver(AUDIO)
    if how == "cancel":
        cancelling = asyncio.create_task(local.cancel())
        await asyncio.sleep(0)
        assert not cancelling.done(), "the slot is not free yet"
    else:
        local.stop()
    bench.deliver(AUDIO)
    bench.deliver(END)
    assert [event.reason async for event in local.events() if isinstance(event, Finished)] == ["cancelled"]
    if how == "cancel":
        await cancelling  # pyrefly: ignore[unbound-name]


async def test_a_cancelled_read_loses_no_event() -> None:
    local = (bench := Bench(words="none")).utterance
    reading = asyncio.create_task(local.next())
    await asyncio.sleep(0)
    await ended(reading)
    bench.deliver(AUDIO)
    chunk = typed(Audio, await local.next())
    assert chunk.payload == LOUD
