"""The messages of one utterance, from a client's adapter to the engine's step and back.

The sender of a command and the receiver of an event name the utterance by `id`: between an adapter and its session that
is the client's context id, between a front and an engine a request id, a u32 that the front never reuses while the
engine lives, so that late events of an ended request are recognised. Each engine process of a node has its own ids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol

from typing_extensions import TypeVar

from agent_tts.directives import Directive
from agent_tts.engine_info import EngineInfo
from agent_tts.options import EngineOptions

K = TypeVar("K", int, str, default=int)
O = TypeVar("O", default=EngineOptions)  # noqa: E741


@dataclass(frozen=True, slots=True)
class _Message(Generic[K]):
    id: K


# ---------------------------------------------------------------- commands, from the adapter towards the engine


@dataclass(frozen=True, slots=True)
class Open(_Message[K], Generic[K, O]):
    """A new utterance. It gets a slot at once or waits in the queue.

    `options`: of an adapter, the fields that override the session's; of a front, `EngineOptions`.
    """

    options: O
    owner: int = 0  # a number for whose it is: owners get equal shares of the slots
    waited_ms: int = 0  # it has waited so long at other engines
    waits: bool = True  # otherwise it is refused at once unless a slot is free


@dataclass(frozen=True, slots=True)
class Append(_Message[K]):
    """More text, in any split; or, behind the reader of markup, a directive after all text so far."""

    content: str | Directive


@dataclass(frozen=True, slots=True)
class Flush(_Message[K]):
    """All text so far is complete words: speak it without waiting for more. Answered by `Flushed`."""

    flush_id: str | None = None  # None: the scheduler's own, of which no listener is told


@dataclass(frozen=True, slots=True)
class End(_Message[K]):
    """No more text will come."""


@dataclass(frozen=True, slots=True)
class Cancel(_Message[K]):
    """Stop now. Only `Finished` follows, unless it was already sent; an engine's step gives nothing any more."""

    played_ms: float | None = None  # what the listener has heard, where the client says so; not sent to an engine


@dataclass(frozen=True, slots=True)
class Credit(_Message[K]):
    """The reader took `frames` frames: credit for as many new ones."""

    frames: int


# ---------------------------------------------------------------- events, from the engine towards the adapter

FLAG_LAST = 1  # last audio of the context
FLAG_FLUSH = 2  # this piece completes the audio before a flush point


@dataclass(frozen=True, slots=True)
class Started(_Message[K]):
    """The utterance has a slot."""

    queue_ms: int
    context_no: int = 0  # of a session: the number by which its audio frames name it


class Audio(NamedTuple, Generic[K]):
    """The next piece of audio. A tuple: there are more of it than of all other messages.

    From an engine: pcm_s16le, 24 kHz, mono, 80 ms or several times that; the first after a pause or flush, or of a
    piece of the text, and the last may be shorter. To a listener: in the encoding and rate of its context.
    """

    id: K
    payload: bytes
    first_sample: int = 0  # index of its first sample at the output rate
    flags: int = 0  # FLAG_LAST | FLAG_FLUSH
    context_no: int = 0  # as in `Started`
    base64: bool = False  # sent as base64 in JSON, not as a binary frame
    peaks: bytes = b""  # of its 10 ms blocks, int16: measured in the front, unless the engine sends word times

    @property
    def last(self) -> bool:
        return bool(self.flags & FLAG_LAST)

    @property
    def flush(self) -> bool:
        return bool(self.flags & FLAG_FLUSH)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text (`agent_tts.text.words`) with its time."""

    word: str  # empty from an engine, which tells offsets alone
    start_ms: int  # from the context's first sample
    end_ms: int
    char_start: int  # offsets in the context's text; from an engine, in the text of its `Append`s
    char_end: int

    def moved(self, ms: int, chars: int) -> Word:
        times = (self.start_ms + ms, self.end_ms + ms)
        return Word(self.word, *times, self.char_start + chars, self.char_end + chars)


@dataclass(frozen=True, slots=True)
class Words(_Message[K]):
    """Word times, before their audio; aligned times replace estimated times of the same word.

    From an engine, times of words or parts of them if it aligns words, otherwise of whole pieces of the text.
    """

    words: tuple[Word, ...]
    kind: Literal["estimated", "aligned"] = "aligned"


@dataclass(frozen=True, slots=True)
class Mark(_Message[K]):
    """A `<mark name="..."/>` of the text, told before the audio at its place."""

    name: str
    at_ms: int  # from the context's first sample
    char_start: int  # offset of the tag in the context's text


@dataclass(frozen=True, slots=True)
class Flushed(_Message[K]):
    """All audio of the text before a `Flush` was sent."""

    flush_id: str | None
    audio_ms: int = 0  # audio so far, to a listener


@dataclass(frozen=True, slots=True)
class OutOfText(_Message[K]):
    """An engine's step has nothing to speak of it until more text comes: leave it out of `run` until then."""


@dataclass(frozen=True, slots=True)
class Cancelled(_Message[K]):
    """The position at which an utterance was cancelled."""

    played_ms: int  # heard by the listener
    generated_ms: int
    heard_text: str
    unheard_text: str


# ready: running, trial synthesis succeeded; starting: running, no audio yet; lost: restarting; failed: given up.
EngineState = Literal["ready", "starting", "lost", "failed"]

FinishReason = Literal["end", "cancelled", "length", "error"]

# Why a piece of a text was ended by the engine, not by the model: its speech went round in a loop, fell silent, went on
# after its text, or filled its positions. `early`: the model itself ended it, with too little speech for its text.
CutReason = Literal["loop", "silence", "overrun", "positions", "early"]


@dataclass(frozen=True, slots=True)
class Finished(_Message[K]):
    """The last event of an utterance, sent exactly once; its slot is free.

    The first four fields are the engine's, the next three the scheduler's, the last ones the meter's.
    """

    reason: FinishReason
    cut: tuple[CutReason, ...] = ()  # why pieces of its text were ended; each reason once
    code: str | None = None  # with reason "error": a code of the wire protocol
    message: str = ""  # safe to show to a client
    retry_after_ms: int | None = None
    gave_way: bool = False  # its slot was taken back for another request
    busy_ms: float = 0.0  # duration of the engine steps with this request
    audio_ms: int = 0  # audio handed out
    ttfa_ms: float | None = None  # first text to first audio; None without audio
    rtf: float | None = None  # engine time / audio time; None without audio
    context_no: int = 0  # as in `Started`


# ---------------------------------------------------------------- between a front and an engine process alone


@dataclass(frozen=True, slots=True)
class EnginePing:
    """Heartbeat, answered by the engine loop between two steps."""

    nonce: int


@dataclass(frozen=True, slots=True)
class StopEngine:
    """Close the engine and end its process."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine is loaded and takes requests."""

    info: EngineInfo
    queue: int  # requests that may wait for a slot
    window: int  # maximum frames of a request beyond its `Credit`


@dataclass(frozen=True, slots=True)
class Stages(_Message[int]):
    """When a request passed the stages before its first audio, which follows; only where `telemetry.stages` is on.

    Seconds on the monotonic clock, which the processes of a machine share.
    """

    taken: float  # the engine's loop took its first text
    scheduled: float  # the first step began that may use the text
    stepped: float  # the step began that made the audio; it may be the same one
    launching: float  # the step's inputs are on the device; its frame is launched
    launched: float
    computed: float  # the device had computed it
    read_back: float  # the host had read it
    handed_out: float


@dataclass(frozen=True, slots=True)
class EnginePong:
    nonce: int
    speaking: int  # slots in use
    queued: int
    step_ms: float  # longest step since the last pong
    worker_deaths: int = 0  # since the last pong: processes of the engine's own that ended
    texts_dropped: int = 0  # since the last pong: pieces of a text that were left out, because they end such a process


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy an engine of several fronts is, for one of them; sent after changes, at most every 50 ms."""

    speaking: int  # slots in use, by any front
    queued: int
    others: int  # open requests of the other fronts


class Send(Protocol):
    """Sends a command to an engine, and never blocks. What `waits` does so a few ms, for others to leave with it."""

    def __call__(self, command: EngineCommand, *, waits: bool = False) -> None: ...


StepCommand = Open[int, EngineOptions] | Append[int] | Flush[int] | End[int] | Cancel[int]
StepEvent = Audio[int] | Words[int] | Flushed[int] | OutOfText[int] | Finished[int]
RequestCommand = StepCommand | Credit[int]
RequestEvent = Started[int] | Stages | Audio[int] | Words[int] | Flushed[int] | Finished[int]
EngineCommand = RequestCommand | EnginePing | StopEngine
EngineEvent = EngineReady | RequestEvent | EnginePong | EngineLoad

OnEvents = Callable[[list[EngineEvent]], None]  # gets events in the batches in which they arrive
OnLost = Callable[[str], None]  # is told why the engine is lost
