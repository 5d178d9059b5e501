"""One utterance without an engine: its events for the listener, and its commands to the engine."""

from __future__ import annotations

import asyncio

import pytest

from agent_tts.directives import Say
from agent_tts.engine_info import FRAME_BYTES, EngineInfo
from agent_tts.errors import EngineLost
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    End,
    EngineCommand,
    Finished,
    Flushed,
    RequestEvent,
    Started,
    Word,
    Words,
)
from agent_tts.options import SpeechOptions
from agent_tts.protocol.options import OutputFormat
from agent_tts.speech.engine_request import EngineRequest
from agent_tts.speech.utterance import LocalUtterance, Told, Utterance, WordsMode
from agent_tts.text.entries import Lexicon

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
        lexicon: dict[str, str] | None = None,
    ) -> None:
        self.sent: list[EngineCommand] = []
        self.request = EngineRequest(7, self.sent.append, window=80)
        self.request.lexicons = [Lexicon.of(lexicon)] if lexicon else ()
        info = EngineInfo("tone", "tone", 1, (), "tone", {"en": "en"}, aligns_words=aligned)
        self.now = 0.0
        self.utterance = Utterance(
            self.request,
            info,
            SpeechOptions(language="en"),
            output=output or OutputFormat(),
            words=words,
            context_id="c",
            clock=lambda: self.now,
        )

    def hear(self, *events: RequestEvent) -> list[Told]:
        """The listener's events after these events of the engine."""
        for event in events:
            self.request.deliver(event)
        told: list[Told] = []
        while (now := self.utterance.poll()) is not None:
            told += now
        return told


def test_words_before_the_start_are_sent_right_after_it() -> None:
    bench = Bench()
    assert bench.utterance.write("Two words ") == []
    started, words = bench.hear(Started(7, 12))
    assert started == Started("c", 12, 1)
    assert isinstance(words, Words)
    assert [word.word for word in words.words] == ["Two", "words"]
    (later,) = bench.utterance.write("more ")
    assert [word.word for word in later.words] == ["more"]


@pytest.mark.parametrize("complete", ["flush", "end"])
def test_the_engine_gets_what_is_said_and_the_listener_what_is_written(complete: str) -> None:
    bench = Bench(lexicon={"new york": "nyoo york"})
    bench.hear(Started(7, 0))
    told = [*bench.utterance.write("In New"), *bench.utterance.write(" York, new"), *bench.utterance.write(" <break/>")]
    told += bench.utterance.flush("") if complete == "flush" else bench.utterance.end()
    text = [item for item in bench.sent if isinstance(item, (Append, Direct))]
    assert text[:3] == [Append(7, "In "), Append(7, Say("New York", "nyoo york")), Append(7, ", ")]
    assert "".join(item.text for item in text if isinstance(item, Append)).rstrip() == "In , new"
    words = [word for words in told for word in words.words]
    assert [(word.word, word.char_start) for word in words][:3] == [("In", 0), ("New", 3), ("York,", 7)]
    assert bench.utterance.cut(0).unheard_text.startswith("In New York, new")


def test_what_is_said_counts_as_text() -> None:
    """Otherwise a lexicon would be a way around the limit of a context."""
    bench = Bench(lexicon={"a": "b" * 200})
    bench.utterance.write("a a c")
    assert bench.utterance.chars == 5 + 2 * 199


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
    assert bench.utterance.write("One two") == []
    (words,) = bench.hear(Words(7, (Word(0, 3, 20, 60),)))
    assert isinstance(words, Words)
    assert [(word.word, word.start_ms, word.end_ms) for word in words.words] == [("One", 20, 60)]


def test_audio_in_another_format_is_encoded_and_flushed_at_the_end() -> None:
    bench = Bench(words="none", output=OutputFormat(encoding="opus", sample_rate=48_000))
    half = Audio(7, LOUD[: len(LOUD) // 2])
    assert bench.hear(half) == []
    chunk, done = bench.hear(END)
    assert isinstance(chunk, Audio)
    assert chunk.last
    assert 0 < len(chunk.payload) < 1_000
    assert isinstance(done, Finished)


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
    assert isinstance(done, Finished)
    assert done.reason == "cancelled"


def test_audio_that_was_not_sent_does_not_count() -> None:
    bench = Bench(words="kept")
    bench.hear(AUDIO, AUDIO)
    bench.utterance.take_back(FRAME_BYTES // 2)
    assert bench.utterance.audio_ms == bench.utterance.played_ms() == 80


def test_a_stopped_utterance_has_its_figures_without_a_poll() -> None:
    """The reader may have gone. Fails without `_on_stopped` in `_on_event`."""
    bench = Bench()
    bench.utterance.stop()
    assert bench.utterance.done is None
    bench.request.deliver(Finished(7, "error", code="internal"))
    assert bench.utterance.done is not None
    assert bench.utterance.done.reason == "cancelled"


# ------------------------------------------------------------ with a reader in the same loop


async def test_a_local_reader_gets_words_audio_and_the_end() -> None:
    bench = Bench()
    local = LocalUtterance(bench.utterance)
    local.write("One.")
    local.end()
    assert bench.sent == [Append(7, "One."), End(7)]
    for event in (Started(7, 0), AUDIO, END):
        bench.request.deliver(event)
    kinds = [type(event) async for event in local.events()]
    assert kinds[0] is Words
    assert (kinds[-1], kinds.count(Audio)) == (Finished, 1)
    assert await local.next() is None
    assert local.done == Finished("c", "end", busy_ms=8.0, audio_ms=80, rtf=0.1, context_no=1)


async def test_a_failure_is_raised_after_all_events() -> None:
    bench = Bench(words="none")
    local = LocalUtterance(bench.utterance)
    bench.request.deliver(AUDIO)
    bench.request.deliver(Finished(7, "error", code="engine_lost", message="gone"))
    chunk = await local.next()
    assert isinstance(chunk, Audio)
    assert isinstance(await local.next(), Finished)
    with pytest.raises(EngineLost, match="gone"):
        await local.next()
    assert isinstance(local.error, EngineLost)


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_only_the_end_follows_a_stop(how: str) -> None:
    bench = Bench(words="none")
    local = LocalUtterance(bench.utterance)
    bench.request.deliver(AUDIO)
    if how == "cancel":
        cancelling = asyncio.create_task(local.cancel())
        await asyncio.sleep(0)
        assert not cancelling.done(), "the slot is not free yet"
    else:
        local.stop()
    bench.request.deliver(AUDIO)
    bench.request.deliver(END)
    assert [event.reason async for event in local.events() if isinstance(event, Finished)] == ["cancelled"]
    if how == "cancel":
        await cancelling


async def test_a_cancelled_read_loses_no_event() -> None:
    local = LocalUtterance((bench := Bench(words="none")).utterance)
    reading = asyncio.create_task(local.next())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    bench.request.deliver(AUDIO)
    chunk = await local.next()
    assert isinstance(chunk, Audio)
    assert chunk.payload == LOUD
