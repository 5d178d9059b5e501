"""One utterance: text in; words, encoded audio and figures out. No I/O."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any, Literal

from agent_tts.directives import Pause, Say
from agent_tts.engine_info import SAMPLE_RATE, EngineInfo
from agent_tts.errors import SpeechError, from_code
from agent_tts.messages import (
    FLAG_FLUSH,
    FLAG_LAST,
    Audio,
    Cancelled,
    Finished,
    Flushed,
    Mark,
    RequestEvent,
    Stages,
    Started,
    Word,
    Words,
)
from agent_tts.options import SpeechOptions
from agent_tts.protocol.options import OutputFormat
from agent_tts.protocol.utterance import AnyUtterance, UtteranceEvent
from agent_tts.speech.audio.encoding import Chunk, make_encoder
from agent_tts.speech.engine_request import EngineRequest
from agent_tts.speech.words.marks import Marks
from agent_tts.speech.words.timeline import LateTimeline, Paces, WordTimeline
from agent_tts.text import markup
from agent_tts.text.lexicon import LexiconReader
from agent_tts.text.markup import Item, MarkupReader

# Words are sent to the listener, kept only for `cut`, or not computed.
WordsMode = Literal["told", "kept", "none"]

Told = Started[str] | UtteranceEvent

PCM = OutputFormat()

# What a text without words sounds like, 20 ms at 24 kHz: clients take an answer without audio for a failure.
NO_WORDS = bytes(SAMPLE_RATE // 50 * 2)


class Meter:
    """Measures one utterance. This one has no clock: it knows the length of the audio, no times."""

    def __init__(self) -> None:
        self.audio_ms = 0.0

    def text(self, characters: int) -> None:
        """Text was appended: so many characters, tags included."""

    def submitted(self, read_at: float) -> None:
        """The first text is on its way to the engine. It was read from the transport at `read_at`, in seconds."""

    def stages(self, stages: Stages) -> None:
        """When the engine passed which stage before the first audio, which follows."""

    def started(self, queue_ms: int) -> None:
        """The utterance has a slot."""

    def audio(self, ms: float) -> None:
        """Audio was given to the listener."""
        self.audio_ms += ms

    def taken_back(self, ms: float) -> None:
        """The last audio that was given was not sent."""
        self.audio_ms -= ms

    def cancelled(self) -> None:
        """The listener stopped the utterance. Idempotent."""

    def played_ms(self) -> float:
        """What a listener who plays in real time has heard by now."""
        return self.audio_ms

    def finished(self, event: Finished[str]) -> Finished[str]:
        """The utterance has ended; returns its figures. Called exactly once."""
        rtf = event.busy_ms / self.audio_ms if self.audio_ms else None
        return replace(event, audio_ms=round(self.audio_ms), rtf=rtf)


class Utterance:
    """Translates the events of an engine request into events for the listener.

    Words that are known before the engine has started follow right after `Started`. The last event is exactly
    one `Finished`; if its reason is "error", `error` holds the cause. `info` is None before the engine's first start;
    `options` are those of the client; `paces` of earlier utterances learn from this one; of `lexicons` the first goes
    before the others.
    """

    def __init__(
        self,
        request: EngineRequest,
        info: EngineInfo | None,
        options: SpeechOptions,
        *,
        output: OutputFormat = PCM,
        words: WordsMode = "told",
        paces: Paces | None = None,
        meter: Meter | None = None,
        context_id: str = "",
        context_no: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        request.waker = self._on_event
        self.context_id = context_id or request.name
        self.context_no = context_no
        self._clock = clock
        self._meter = meter or Meter()
        self._output = output
        self._encoder = make_encoder(output.encoding, output.sample_rate, output.bit_rate)
        self._base64 = output.framing == "base64"
        self._paces = paces or Paces()
        self._voice = options.voice
        self._tells = words == "told"
        # None if words are not computed.
        self._timeline: WordTimeline | None = None
        if words != "none":
            how: dict[str, Any] = {
                "speed": options.speed,
                "language": info.languages.get(options.language.lower(), "en") if info is not None else "en",
                "pace": self._paces.of(options.voice),
            }
            aligned = info is not None and info.aligns_words
            if aligned or self._tells:
                self._timeline = WordTimeline(aligned=aligned, tells=self._tells, **how)
            else:
                self._timeline = LateTimeline(**how)
        # Reads the tags in the text, None if they are text; and the marks among them.
        self._markup = MarkupReader() if options.markup == "auto" else None
        self._marks = Marks(self.context_id)
        # Says words as the lexicons have them; None without one.
        self._lexicon = LexiconReader(request.lexicons) if request.lexicons else None
        # Characters of text so far, or of what is said for it if that is longer, tags included; and unanswered flushes.
        self.chars = 0
        self.flushes = 0
        # Whether there is more than white space.
        self._has_text = False
        # Words computed before the engine has started; None afterwards.
        self._early: list[Word] | None = []
        # Samples at 24 kHz handed out, and the index of the next sample at the output rate.
        self.samples = 0
        self._first_sample = 0
        # Whether the chunk with FLAG_LAST was handed out.
        self._closed = False
        # The listener's last acknowledgement: (ms played, time of arrival); None before the first.
        self._acked: tuple[float, float] | None = None
        # The figures; set when `Finished` is taken, or arrives after `stop`.
        self.done: Finished[str] | None = None
        # Cause of a failure; set with `done`.
        self.error: SpeechError | None = None
        # Called when `poll` may have an event; set by the reader. It must not raise or await.
        self.waker: Callable[[], None] | None = None

    # ------------------------------------------------------------ the writer's side

    def write(self, text: str) -> list[Words[str]]:
        """Append text, verbatim and in any split; returns words to send now, `poll` the rest. Ignored after the end."""
        if not text:
            return []
        self.chars += len(text)
        self._has_text = self._has_text or not text.isspace()
        self._meter.text(len(text))
        items: list[Item] = [text] if self._markup is None else self._markup.read(text)
        if not items:
            self.request.write("")  # a long thought does not starve
        return self._take(items)

    def submitted(self, read_at: float) -> None:
        """The first text has been written. It was read from the transport at `read_at`, in seconds."""
        self._meter.submitted(read_at)

    def flush(self, flush_id: str) -> list[Words[str]]:
        """Speak all text so far as complete words; answered by `Flushed`. Returns words to send now."""
        self.flushes += 1
        words = self._take(self._markup.flush() if self._markup is not None else [], complete=True)
        self.request.flush(flush_id)
        return words + (self._read_now(self._timeline.flush()) if self._timeline is not None else [])

    def end(self) -> list[Words[str]]:
        """No more text; returns words to send now. Idempotent."""
        words = self._take(self._markup.end() if self._markup is not None else [], complete=True)
        self.request.end()
        return words + (self._read_now(self._timeline.complete()) if self._timeline is not None else [])

    def _take(self, items: list[Item], *, complete: bool = False) -> list[Words[str]]:
        """Give text without tags, and directives, to the engine and the timeline; `complete`: its last word is."""
        words: list[Word] = []
        for item in items if self._lexicon is None else self._looked_up(self._lexicon, items, complete=complete):
            if isinstance(item, markup.Mark):
                self._marks.add(item.name, item.offset)
            elif isinstance(item, str):
                self.request.write(item)
                self._marks.append(item)
                words += self._timeline.append(item) if self._timeline is not None else []
            else:
                self.request.direct(item)
                if isinstance(item, Say):
                    self._marks.append(item.text)
                elif isinstance(item, Pause):
                    self._marks.pause()
                words += self._timeline.direct(item) if self._timeline is not None else []
        return self._read_now(words)

    def _looked_up(self, lexicon: LexiconReader, items: list[Item], *, complete: bool) -> Iterator[Item]:
        for item in [*items, None] if complete else items:
            for said in lexicon.append(item) if isinstance(item, str) else lexicon.flush():
                if isinstance(said, Say) and said.alias is not None:
                    self.chars += max(0, len(said.alias) - len(said.text))  # long aliases are no way around the limit
                yield said
            if item is not None and not isinstance(item, str):
                yield item

    def ack(self, played_ms: float) -> None:
        """The listener has played `played_ms` of the utterance."""
        self._acked = (played_ms, self._clock())

    def stop(self) -> None:
        """Stop without waiting: only `Finished` follows. Idempotent."""
        if self.done is not None:
            return
        self._meter.cancelled()
        self.request.stop()
        self._on_stopped()

    async def cancel(self) -> None:
        """Stop; the slot is free when this returns. Idempotent. Cancelling this coroutine is safe: it still stops."""
        self.stop()
        await self.request.cancel()

    def cut(self, played_ms: float | None = None) -> Cancelled[str]:
        """Stop; returns the text that was heard, after `played_ms` of audio (default: `played_ms()`), and the rest."""
        assert self._timeline is not None, "words are left out"
        generated_ms = round(self.request.samples * 1_000 / SAMPLE_RATE)
        played_ms = min(self.played_ms() if played_ms is None else played_ms, generated_ms)
        if (finished := self.request.finished) is not None:
            self._timeline.finish(generated_ms, cut=finished.reason != "end" or self._timeline.is_unread)
        heard, unheard = self._timeline.split(played_ms)
        self.stop()
        return Cancelled(self.context_id, round(played_ms), generated_ms, heard, unheard)

    def take_back(self, first_sample: int) -> None:
        """Chunks from `first_sample` (at the output rate) on were handed out, but not sent."""
        samples = first_sample * SAMPLE_RATE // self._output.sample_rate
        self._meter.taken_back((self.samples - samples) * 1_000 / SAMPLE_RATE)
        self.samples = samples

    def played_ms(self) -> float:
        """Milliseconds that the listener has heard, from its acknowledgement or from real time."""
        if self._acked is None:
            return self._meter.played_ms()
        acked_ms, at = self._acked
        return min(acked_ms + (self._clock() - at) * 1_000, self.audio_ms)

    @property
    def audio_ms(self) -> int:
        """Milliseconds of audio handed out."""
        return round(self.samples * 1_000 / SAMPLE_RATE)

    # ------------------------------------------------------------ the reader's side

    def poll(self) -> list[Told] | None:
        """The listener's next events; None when there is none now."""
        if self._tells and self.is_unread:
            return self._read()
        event = self.request.poll()
        return None if event is None else self._told(event)

    async def next(self) -> list[Told] | None:
        """Like `poll`, but waits for the next event; None after `Finished`. Cancelling it loses nothing."""
        if self.is_unread:
            return self._read()
        event = await self.request.next()
        return None if event is None else self._told(event)

    @property
    def has_events(self) -> bool:
        """Whether `poll` would return something."""
        return self.request.has_events or self.is_unread

    @property
    def is_unread(self) -> bool:
        """Whether words of the text wait to be read and told; before the engine has started they wait for that."""
        timeline = self._timeline
        return timeline is not None and self._early is None and timeline.is_unread and not self.request.stopped

    # ------------------------------------------------------------ inside

    def _read(self) -> list[Told]:
        assert self._timeline is not None
        return [*self._words("estimated", self._timeline.read())]

    def _on_event(self) -> None:
        if self.request.stopped:
            self._on_stopped()
        if self.waker is not None:
            self.waker()

    def _on_stopped(self) -> None:
        """Take the end of a stopped utterance at its arrival: the reader may not poll again."""
        if self.request.stopped and self.request.finished is not None:
            self._end(self.request.finished)

    def _end(self, finished: Finished[int]) -> Finished[str]:
        if self.done is None:
            figures = {name: value for name, value in asdict(finished).items() if name not in ("id", "context_no")}
            self.done = self._meter.finished(Finished(self.context_id, **figures, context_no=self.context_no))
            self.request.waker = None  # nothing follows; without the cycle both are freed at once
        return self.done

    def _told(self, event: RequestEvent) -> list[Told]:
        if isinstance(event, Audio):
            return self._on_audio(event.payload, event.peaks)
        match event:
            case Words(words=times):
                return [*self._final(self._timeline.align(times))] if self._timeline is not None else []
            case Stages():
                self._meter.stages(event)
                return []
            case Started(queue_ms=queue_ms):
                self._meter.started(queue_ms)
                early, self._early = self._early or [], None
                return [Started(self.context_id, queue_ms, self.context_no), *self._new_words(early)]
            case Flushed(flush_id=flush_id):
                self.flushes -= 1
                if self._timeline is not None:
                    self._timeline.flushed(self.audio_ms)
                return [Flushed(self.context_id, flush_id, self.audio_ms)]
            case Finished():
                return self._on_finished(event)

    def _on_audio(self, pcm: bytes, peaks: bytes) -> list[Told]:
        samples = len(pcm) // 2
        self.samples += samples
        told: list[Told] = []
        if self._timeline is not None:
            self._timeline.hear(samples, peaks)
            if self._tells and (settled := self._timeline.settle(self.audio_ms)):
                told += self._final(settled)
        self._meter.audio(samples * 1_000 / SAMPLE_RATE)
        chunks = self._encoder.encode(pcm)
        flags = 0
        for later in self.request.ahead() if self.request.has_events else ():
            if isinstance(later, Flushed):
                flags |= FLAG_FLUSH
            elif isinstance(later, Finished) and later.reason in ("end", "length"):
                flags |= FLAG_LAST
                self._closed = True
                chunks += self._encoder.flush()
        self._add_chunks(told, chunks, flags)
        return told

    def _add_chunks(self, told: list[Told], chunks: list[Chunk], flags: int) -> None:
        """Append `chunks`, the last with `flags`; flags without audio are sent with an empty chunk."""
        if flags and not chunks:
            chunks = [(b"", 0)]
        left = len(chunks)
        for payload, samples in chunks:
            left -= 1
            its_flags = 0 if left else flags
            place = self._first_sample, its_flags, self.context_no
            told.append(Audio(self.context_id, payload, *place, self._base64))
            self._first_sample += samples

    def _on_finished(self, event: Finished[int]) -> list[Told]:
        told: list[Told] = []
        if event.reason == "end" and self._has_text and not self.samples:
            told += self._on_audio(NO_WORDS, b"")
        if event.reason in ("end", "length"):
            if self.samples and not self._closed:
                self._add_chunks(told, self._encoder.flush(), FLAG_LAST)
            if self._timeline is not None and self._tells:
                left = self._timeline.finish(self.audio_ms, cut=event.reason == "length")
                told += self._final(left) if self._timeline.kind == "aligned" else self._words("estimated", left)
                told += self._final(self._timeline.settle())
                told += self._marks.rest() if event.reason == "end" else []
                self._paces.learn(self._voice, self._timeline.pace)
        if event.code is not None:
            self.error = from_code(event.code, event.message, event.retry_after_ms)
        told.append(self._end(event))
        return told

    def _read_now(self, words: list[Word]) -> list[Words[str]]:
        if self.is_unread and self.waker is not None:
            self.waker()
        return self._new_words(words)

    def _new_words(self, words: list[Word]) -> list[Words[str]]:
        if self._early is None:
            return self._words("estimated", words)
        self._early += words
        return []

    def _words(self, kind: Literal["estimated", "aligned"], words: list[Word]) -> list[Words[str]]:
        if not (words and self._tells):
            return []
        if self._markup is not None and (offsets := self._markup.offsets).is_shifted:
            words = [_moved(word, *offsets.span(word.char_start, word.char_end)) for word in words]
        return [Words(self.context_id, tuple(words), kind)]

    def _final(self, words: list[Word]) -> list[Words[str] | Mark[str]]:
        """Words with final times, and the marks among them."""
        return [*self._words("aligned", words), *self._marks.due(words)] if self._tells else []


def _moved(word: Word, start: int, end: int) -> Word:
    return Word(word.word, word.start_ms, word.end_ms, start, end)


class LocalUtterance(AnyUtterance):
    """An utterance for one reader in the node's event loop."""

    def __init__(self, utterance: Utterance) -> None:
        self._utterance = utterance
        self.context_id = utterance.context_id
        # Events not yet taken by the reader.
        self._told: deque[UtteranceEvent] = deque()

    @property
    def done(self) -> Finished[str] | None:
        return self._utterance.done

    @property
    def error(self) -> SpeechError | None:
        """Cause of a failure; set with `done`."""
        return self._utterance.error

    def write(self, text: str) -> None:
        self._told += self._utterance.write(text)

    def end(self) -> None:
        self._told += self._utterance.end()

    def stop(self) -> None:
        self._told.clear()
        self._utterance.stop()

    async def cancel(self) -> None:
        """Stop; the slot is free when this returns. Idempotent. Cancelling this coroutine is safe: it still stops."""
        self.stop()
        await self._utterance.cancel()

    async def next(self) -> UtteranceEvent | None:
        while not self._told:
            told = await self._utterance.next()
            if told is None:
                if self.error is not None:
                    raise self.error
                return None
            self._told += [event for event in told if not isinstance(event, Started)]
        return self._told.popleft()
