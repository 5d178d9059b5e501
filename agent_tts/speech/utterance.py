"""One utterance in the front: text in; words, encoded audio and figures out. No I/O."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Literal

from agent_tts.directives import Pause, Say
from agent_tts.engine_info import FRAME_BYTES, SAMPLE_RATE, EngineInfo
from agent_tts.errors import SpeechError, from_code
from agent_tts.messages import (
    FLAG_FLUSH,
    FLAG_LAST,
    Append,
    Audio,
    Cancel,
    Cancelled,
    Credit,
    End,
    Finished,
    Flush,
    Flushed,
    RequestEvent,
    Send,
    Stages,
    Started,
    Word,
    Words,
)
from agent_tts.protocol.options import OutputFormat
from agent_tts.protocol.utterance import AnyUtterance, UtteranceEvent
from agent_tts.speech.routing import Resolved
from agent_tts.speech.words.marks import Marks
from agent_tts.speech.words.peaks import FRAME_PEAKS_BYTES
from agent_tts.speech.words.timeline import LateTimeline, Paces, WordTimeline
from agent_tts.text.entries import Lexicon
from agent_tts.text.lexicon import LexiconReader
from agent_tts.text.markup.reader import Item, MarkTag, MarkupReader

if TYPE_CHECKING:
    from agent_tts.speech.audio.encoding import Chunk, Encoder

# Words are sent to the listener, kept only for `cut`, or not computed.
WordsMode = Literal["told", "kept", "none"]

Told = Started[str] | UtteranceEvent

PCM = OutputFormat()

# What a text without words sounds like, 20 ms at 24 kHz: clients take an answer without audio for a failure.
NO_WORDS = bytes(SAMPLE_RATE // 50 * 2)

# Words that get their final times at once, at the end: in about a millisecond.
SETTLED_AT_ONCE = 64

# Credit is granted in this many parts of the window: few messages, and the engine never runs out of credit.
GRANTS = 8


class Meter:
    """Measures one utterance. This one has no clock: it knows the length of the audio, no times."""

    def __init__(self) -> None:
        self.audio_ms = 0.0

    def take(self, characters: int, *, begins: bool) -> None:
        """So many characters are to be written, the first ones if it `begins`. Raises `RateLimited`."""

    def text(self, characters: int) -> None:
        """Text was appended: so many characters, tags included."""

    def awaited(self) -> None:
        """Its listener waits from now on: what came before was prepared, and is not polled yet."""

    def submitted(self, read_at: float) -> None:
        """The first text is on its way to the engine. It was read from the transport at `read_at`, in seconds."""

    def stages(self, stages: Stages) -> None:
        """When the engine passed which stage before the first audio, which follows."""

    def started(self, queue_ms: int) -> None:
        """The utterance has a slot."""

    def audio(self, ms: float) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    output: OutputFormat = PCM
    words: WordsMode = "none"
    paces: Paces = field(default_factory=Paces)  # of earlier utterances; they learn from this one
    context_id: str = ""  # "": the request's name in the log
    context_no: int = 1
    clock: Callable[[], float] = time.monotonic


class Utterance(AnyUtterance):
    """Gives one request's text to the engine, and the engine's events, translated, to one reader.

    Made by `SpeechService.open`. The reader calls `poll` when woken, or awaits `next`. Words that are known before the
    engine has started follow right after `Started`. The last event is exactly one `Finished`; if its reason is "error",
    `error` holds the cause.
    """

    def __init__(
        self, resolved: Resolved, info: EngineInfo, window: int, owner: int = 0, listener: Listener | None = None
    ) -> None:
        """`window`: how many frames the engine makes beyond the credit; `owner`: whose it is."""
        listener = listener or Listener()
        # Id of this request in its engine, and the engine's index in the node. Both may change until it has a slot.
        self.request_id = self.engine = 0
        self.owner = owner
        self.context_id = listener.context_id
        self.context_no = listener.context_no
        # Set by who opens it, before its first text.
        self.meter = Meter()
        self._clock = listener.clock
        self._output = output = listener.output
        self._base64 = output.framing == "base64"
        # None where the engine's audio is sent as it is; and whether it takes as long as a slice of the loop for 80 ms.
        self._encoder: Encoder | None = None
        self._is_slow = False
        if (output.encoding, output.sample_rate) != (PCM.encoding, PCM.sample_rate):
            # With codecs, which a supervisor does not load.
            from agent_tts.speech.audio.encoding import Transcoder, make_encoder

            self._encoder = make_encoder(output.encoding, output.sample_rate, output.bit_rate)
            self._is_slow = not isinstance(self._encoder, Transcoder)
        self._paces = listener.paces
        self._voice = resolved.voice
        self._tells = listener.words == "told"
        # None if words are not computed.
        self._timeline: WordTimeline | LateTimeline | None = None
        if listener.words != "none":
            how = resolved.options
            language, pace = "en" if how.language == "auto" else how.language, self._paces.of(self._voice)
            told = {"aligned": info.aligns_words, "tells": self._tells}
            timeline = WordTimeline(**told, speed=how.speed, language=language, pace=pace)
            self._timeline = timeline if any(told.values()) else LateTimeline(timeline)
        # Reads the tags in the text, None if they are text; and the marks among them.
        self._markup = MarkupReader() if resolved.markup else None
        self._marks = Marks()
        # Says words as the lexicons have them; None without one.
        lexicons = [each for each in resolved.lexicons if isinstance(each, Lexicon)]
        self._lexicon = LexiconReader(lexicons) if lexicons else None
        # What the writer has done since a lexicon of its voice is being read, which it waits for; None otherwise.
        self._late = deque[partial[None]]() if len(lexicons) < len(resolved.lexicons) else None
        self._is_closed = False  # the engine was told that no text follows
        # Characters of text so far, or of what is said for it if that is longer, tags included; and unanswered flushes.
        self.chars = 0
        self.flushes = 0
        # Whether there is more than white space.
        self._has_text = False
        # Sends a command to the engine, without blocking; set by `settle`, before which nobody gets it.
        self._send: Send = lambda command, *, waits=False: None
        # Frames taken since credit was last granted, and frames per grant.
        self._taken = 0
        self._grant = max(1, window // GRANTS)
        # The engine's events that are not translated yet: at most `window` frames beyond the credit.
        self._events: deque[RequestEvent] = deque()
        self._told: deque[Told] = deque()
        # Words computed before the engine has started; None afterwards.
        self._early: list[Word] | None = []
        # Whether it has or had a slot; whether no more text comes; whether `stop` was called.
        self.started = self.ended = self.stopped = False
        # Samples at 24 kHz that came from the engine, dropped ones included; and of those, handed out.
        self.received = self.samples = 0
        # Index of the next sample at the output rate.
        self._first_sample = 0
        # Whether the chunk with FLAG_LAST, and all that comes before `Finished`, was told.
        self._is_last_out = self._is_complete = False
        # Whether the timeline has got the length of the audio.
        self._is_resting = False
        # The listener's last acknowledgement: (ms played, time of arrival); None before the first.
        self._acked: tuple[float, float] | None = None
        # The engine's last event; None until it arrives.
        self.finished: Finished[int] | None = None
        # Set when `Finished` is taken, or arrives after `stop`.
        self.done: Finished[str] | None = None
        # Cause of a failure; set with `done`.
        self.error: SpeechError | None = None
        # Called when `poll` may have an event; set by the reader. It must not raise or await.
        self.waker: Callable[[], None] | None = None
        # Set with each event, for `next`; and by the last one of the engine, for `cancel`.
        self._arrived, self._over = asyncio.Event(), asyncio.Event()

    # ------------------------------------------------------------ the writer's side

    def write(self, text: str) -> None:
        if not text:
            return
        self.chars += len(text)
        self._has_text = self._has_text or not text.isspace()
        self.meter.text(len(text))
        self._do(self._write, text)

    def _write(self, text: str) -> None:
        items: list[Item] = [text] if self._markup is None else self._markup.read(text)
        if not items:
            self._command(Append(self.request_id, ""))  # a long thought does not starve
        self._take(items)

    def flush(self, flush_id: str) -> None:
        """Speak all text so far as complete words; answered by `Flushed` after its audio."""
        self.flushes += 1
        self._do(self._flush, flush_id)

    def _flush(self, flush_id: str) -> None:
        self._take(self._markup.flush() if self._markup is not None else [], complete=True)
        self._command(Flush(self.request_id, flush_id))
        if self._timeline is not None:
            self._tell_new(self._timeline.flush())

    def end(self) -> None:
        self.ended = True
        self._do(self._end_text)

    def _end_text(self) -> None:
        self._take(self._markup.end() if self._markup is not None else [], complete=True)
        self._command(End(self.request_id))
        self._is_closed = True
        if self._timeline is not None:
            self._tell_new(self._timeline.complete())

    @property
    def waits_for_lexicons(self) -> bool:
        """Whether text waits for `look_up`."""
        return self._late is not None

    def look_up(self, lexicons: Sequence[Lexicon]) -> None:
        """All lexicons, in the order of those that were asked for, now that they have been read."""
        self._lexicon = LexiconReader(lexicons)
        self._go_on()

    def _go_on(self) -> None:
        """Do the next thing that has waited; each has its own turn of the loop."""
        if self._late:
            self._late.popleft()()
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._late = None

    def _do(self, act: Callable[..., None], *what: str) -> None:
        if self._late is None:
            act(*what)
        else:
            self._late.append(partial(act, *what))

    def ack(self, played_ms: float) -> None:
        self._acked = (played_ms, self._clock())

    def stop(self) -> None:
        """Stop now, without waiting: only estimated words and `Finished` follow, "cancelled". Idempotent."""
        if self.done is not None or self.stopped:
            return
        self.stopped = True
        self.meter.cancelled()
        unsent = next((event for event in self._told if isinstance(event, Audio)), None)
        if unsent is not None:
            samples = unsent.first_sample * SAMPLE_RATE // self._output.sample_rate
            self.meter.taken_back((self.samples - samples) * 1_000 / SAMPLE_RATE)
            self.samples = samples
        # Estimated words are kept: a client that goes on elsewhere counts on the text that they cover.
        self._told = deque(event for event in self._told if isinstance(event, Words) and event.kind == "estimated")
        self._events.clear()
        if self.finished is None:
            self._send(Cancel(self.request_id))
        else:
            self.deliver(self.finished)

    async def cancel(self) -> None:
        """Stop; the slot is free when this returns. Idempotent. Cancelling this coroutine is safe: it still stops."""
        self.stop()
        await self._over.wait()

    def cut(self, played_ms: float | None = None) -> Cancelled[str]:
        """Stop; returns the text that was heard, after `played_ms` of audio (default: `played_ms()`), and the rest."""
        assert self._timeline is not None, "words are left out"
        waiting = "".join(act.args[0] for act in self._late or () if act.func == self._write)
        generated_ms = round(self.received * 1_000 / SAMPLE_RATE)
        played_ms = min(self.played_ms() if played_ms is None else played_ms, generated_ms)
        if self.finished is not None:
            self._timeline.finish(generated_ms, cut=self.finished.reason != "end" or self._timeline.is_unread)
        heard, unheard = self._timeline.split(played_ms)
        self.stop()
        if self._late is not None:
            self._late.clear()
            items = [waiting] if self._markup is None else [*self._markup.read(waiting), *self._markup.end()]
            unheard += "".join(item for item in items if isinstance(item, str))
        return Cancelled(self.context_id, round(played_ms), generated_ms, heard, unheard)

    def played_ms(self) -> float:
        """Milliseconds that the listener has heard, from its acknowledgement or from real time."""
        if self._acked is None:
            return self.meter.played_ms()
        acked_ms, at = self._acked
        return min(acked_ms + (self._clock() - at) * 1_000, self.audio_ms)

    @property
    def audio_ms(self) -> int:
        return round(self.samples * 1_000 / SAMPLE_RATE)

    # ------------------------------------------------------------ the reader's side

    def poll(self) -> Told | None:
        """The listener's next event; None when there is none now."""
        while not self._told:
            if self._is_unread:
                assert isinstance(self._timeline, WordTimeline)
                self._tell_of(self._timeline, self._timeline.read())
            elif self._events:
                self._translate(self._events.popleft())
            else:
                return None
        return self._told.popleft()

    async def next(self) -> UtteranceEvent | None:
        while True:
            event = self.poll()
            if event is None and self.done is not None:
                if self.error is not None:
                    raise self.error
                return None
            if event is not None and not isinstance(event, Started):
                return event
            if event is None:
                self._arrived.clear()
                await self._arrived.wait()

    @property
    def has_events(self) -> bool:
        return bool(self._told or self._events) or self._is_unread

    @property
    def ahead(self) -> RequestEvent | None:
        """What the next event is made of: the engine's next one; None where it is known already, or none has come."""
        return self._events[0] if self._events and not self._told and not self._is_unread else None

    # ------------------------------------------------------------ the engine's side

    def settle(self, request_id: int, engine: int, send: Send) -> None:
        """It is open at this engine under this id. Called only by the service."""
        self.request_id, self.engine, self._send = request_id, engine, send
        self.context_id = self.context_id or f"{engine}/{request_id}"

    def deliver(self, event: RequestEvent) -> None:
        """Take an event from the engine. Called only by the service."""
        if isinstance(event, Audio):
            self.received += len(event.payload) // 2
        elif isinstance(event, Started):
            self.started = True
        elif isinstance(event, Finished):
            if self.stopped:  # also if the engine failed meanwhile
                event = replace(event, reason="cancelled", code=None)
            self.finished = event
            self._over.set()
        if self.stopped:
            if not isinstance(event, Finished):
                return
            self._end(event)  # at its arrival: the reader may not poll again
        self._events.append(event)
        self._wake()

    # ------------------------------------------------------------ text

    def _command(self, command: Append[int] | Flush[int] | End[int]) -> None:
        """Ignored after `end` and once finished."""
        if self.finished is None and not self._is_closed:
            waits = isinstance(command, Append) and isinstance(command.content, str) and self.received > 0
            self._send(command, waits=waits)

    def _take(self, items: list[Item], *, complete: bool = False) -> None:
        """Give text without tags, and directives, to the engine and the timeline; `complete`: its last word is."""
        timeline = self._timeline
        words: list[Word] = []
        for item in items if self._lexicon is None else self._looked_up(self._lexicon, items, complete=complete):
            if isinstance(item, MarkTag):
                if timeline is not None:
                    self._marks.add(item.name, item.offset, timeline.place)
                continue
            self._command(Append(self.request_id, item))
            if timeline is None:
                continue
            if isinstance(item, str):
                words += timeline.append(item)
            else:
                if isinstance(item, Pause):
                    self._marks.pause(timeline.place)
                words += timeline.direct(item)
        self._tell_new(words)

    def _looked_up(self, lexicon: LexiconReader, items: list[Item], *, complete: bool) -> Iterator[Item]:
        for item in [*items, None] if complete else items:
            for said in lexicon.append(item) if isinstance(item, str) else lexicon.flush():
                if isinstance(said, Say) and said.alias is not None:
                    self.chars += max(0, len(said.alias) - len(said.text))  # long aliases are no way around the limit
                yield said
            if item is not None and not isinstance(item, str):
                yield item

    # ------------------------------------------------------------ events

    @property
    def _is_unread(self) -> bool:
        """Whether words of the text wait to be read and told; before the engine has started they wait for that."""
        timeline = self._timeline
        return timeline is not None and self._early is None and timeline.is_unread and not self.stopped

    def _wake(self) -> None:
        self._arrived.set()
        if self.waker is not None:
            self.waker()

    def _end(self, finished: Finished[int]) -> Finished[str]:
        if self.done is None:
            if finished.code is not None:
                self.error = from_code(finished.code, finished.message, finished.retry_after_ms)
            figures = {name: getattr(finished, name) for name in Finished.__match_args__}
            figures |= {"id": self.context_id, "context_no": self.context_no}
            self.done = self.meter.finished(Finished(**figures))
        return self.done

    def _translate(self, event: RequestEvent) -> None:
        if isinstance(event, Audio):
            if self._is_slow and len(event.payload) > FRAME_BYTES:  # others have their turn in between
                pcm, peaks = event.payload, event.peaks
                rest = event._replace(payload=pcm[FRAME_BYTES:], peaks=peaks[FRAME_PEAKS_BYTES:])
                self._events.appendleft(rest)
                event = event._replace(payload=pcm[:FRAME_BYTES], peaks=peaks[:FRAME_PEAKS_BYTES])
            self._taken += -(-len(event.payload) // FRAME_BYTES)
            if self._taken >= self._grant:
                self._send(Credit(self.request_id, self._taken), waits=True)
                self._taken = 0
            self._tell_audio(event.payload, event.peaks)
            return
        match event:
            case Words(words=times):
                if self._timeline is not None:
                    self._tell_of(self._timeline, self._timeline.align(times))
            case Stages():
                self.meter.stages(event)
            case Started(queue_ms=queue_ms):
                self.meter.started(queue_ms)
                self._told.append(Started(self.context_id, queue_ms, self.context_no))
                early, self._early = self._early or [], None
                self._tell_words("estimated", early)
            case Flushed(flush_id=flush_id):
                self.flushes -= 1
                if self._timeline is not None:
                    self._timeline.flushed(self.audio_ms)
                self._told.append(Flushed(self.context_id, flush_id, self.audio_ms))
            case Finished() if self._is_complete:
                self._told.append(self._end(event))
            case Finished():
                self._is_complete = self._tell_rest(event)
                self._events.append(event)  # once the reader has taken the rest: until then `stop` can drop it

    def _tell_audio(self, pcm: bytes, peaks: bytes) -> None:
        samples = len(pcm) // 2
        self.samples += samples
        if self._timeline is not None:
            self._timeline.hear(samples, peaks)
            if isinstance(self._timeline, WordTimeline) and self._tells:
                self._tell_final(self._timeline.settle(self.audio_ms))
        self.meter.audio(samples * 1_000 / SAMPLE_RATE)
        chunks = _frames(pcm) if self._encoder is None else self._encoder.encode(pcm)
        flags = 0
        for later in takewhile(lambda event: not isinstance(event, Audio), self._events):
            if isinstance(later, Flushed):
                flags |= FLAG_FLUSH
            elif isinstance(later, Finished) and later.reason in ("end", "length"):
                flags |= FLAG_LAST
                chunks += self._last_chunks()
        self._tell_chunks(chunks, flags)

    def _last_chunks(self) -> list[Chunk]:
        self._is_last_out = True
        return [] if self._encoder is None else self._encoder.flush()

    def _tell_chunks(self, chunks: list[Chunk], flags: int) -> None:
        """The last of `chunks` has `flags`; flags without audio are sent with an empty chunk."""
        if flags and not chunks:
            chunks = [(b"", 0)]
        left = len(chunks)
        for payload, samples in chunks:
            left -= 1
            place = self._first_sample, 0 if left else flags, self.context_no
            self._told.append(Audio(self.context_id, payload, *place, self._base64))
            self._first_sample += samples

    def _tell_rest(self, event: Finished[int]) -> bool:
        """What comes before a regular end, `SETTLED_AT_ONCE` words of it. Returns whether that was all."""
        if event.reason == "end" and self._has_text and not self.samples:
            self._tell_audio(NO_WORDS, b"")
        if event.reason not in ("end", "length"):
            return True
        if self.samples and not self._is_last_out:
            self._tell_chunks(self._last_chunks(), FLAG_LAST)
        if isinstance(self._timeline, WordTimeline) and self._tells:
            if not self._is_resting:
                self._is_resting = True
                self._tell_of(self._timeline, self._timeline.finish(self.audio_ms, cut=event.reason == "length"))
                if self._timeline.is_unread:
                    return False
            words = self._timeline.settle(most=SETTLED_AT_ONCE)
            self._tell_final(words)
            if len(words) == SETTLED_AT_ONCE:
                return False
            if event.reason == "end":
                self._told += self._marks.rest(self.context_id)
            self._paces.learn(self._voice, self._timeline.pace)
        return True

    def _tell_new(self, words: list[Word]) -> None:
        """Tell of words whose text has just come; the rest is read by `poll`."""
        if self._early is not None:
            self._early += words
            return
        self._tell_words("estimated", words)
        if self.has_events:
            self._wake()

    def _tell_of(self, timeline: WordTimeline | LateTimeline, words: list[Word]) -> None:
        """Words whose times are final if they are the engine's."""
        if isinstance(timeline, WordTimeline) and timeline.aligned:
            self._tell_final(words)
        else:
            self._tell_words("estimated", words)

    def _tell_final(self, words: list[Word]) -> None:
        """Words with final times, and the marks among them."""
        if self._tells and words:
            self._tell_words("aligned", words)
            self._told += self._marks.due(self.context_id, words)

    def _tell_words(self, kind: Literal["estimated", "aligned"], words: list[Word]) -> None:
        if not (words and self._tells):
            return
        if self._markup is not None and (offsets := self._markup.offsets).is_shifted:
            places = [offsets.span(word.char_start, word.char_end) for word in words]
            words = [Word(word.word, word.start_ms, word.end_ms, *at) for word, at in zip(words, places, strict=True)]
        self._told.append(Words(self.context_id, tuple(words), kind))


def _frames(pcm: bytes) -> list[Chunk]:
    """pcm_s16le at 24 kHz in pieces of at most 80 ms."""
    pieces = [pcm[start : start + FRAME_BYTES] for start in range(0, len(pcm), FRAME_BYTES)]
    return [(piece, len(piece) // 2) for piece in pieces]
