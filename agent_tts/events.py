"""The values exchanged between the front process and the engine process.

A request is one utterance in the engine. Its request_id is a u32 that the front never reuses while the engine process
lives, so that late events of an ended request are recognised. Each engine process of a node has its own ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agent_tts.directives import Directive
from agent_tts.engine_info import EngineInfo
from agent_tts.options import EngineOptions


@dataclass(frozen=True, slots=True)
class _OfRequest:
    request_id: int


# ---------------------------------------------------------------- front -> engine


@dataclass(frozen=True, slots=True)
class OpenRequest(_OfRequest):
    """A new request. It gets a slot at once or waits in the queue."""

    options: EngineOptions
    owner: int = 0  # a number for whose it is: owners get equal shares of the slots
    waited_ms: int = 0  # it has waited so long at other engines
    waits: bool = True  # otherwise it is refused at once unless a slot is free


@dataclass(frozen=True, slots=True)
class AppendText(_OfRequest):
    """More text of a request, without markup."""

    text: str
    waits: bool = field(default=False, compare=False, repr=False)  # a few ms for other commands; not sent


@dataclass(frozen=True, slots=True)
class Direct(_OfRequest):
    """A directive after all text so far."""

    directive: Directive


@dataclass(frozen=True, slots=True)
class FlushText(_OfRequest):
    """All text so far is complete words: speak it without waiting for more."""

    flush_id: str


@dataclass(frozen=True, slots=True)
class EndText(_OfRequest):
    """No more text will come."""


@dataclass(frozen=True, slots=True)
class CancelRequest(_OfRequest):
    """Stop now. Only `RequestFinished` of this request follows, unless it was already sent."""


@dataclass(frozen=True, slots=True)
class GrantCredit(_OfRequest):
    """The reader took `frames` frames: credit for as many new ones."""

    frames: int


@dataclass(frozen=True, slots=True)
class EnginePing:
    """Heartbeat, answered by the engine loop between two steps."""

    nonce: int


@dataclass(frozen=True, slots=True)
class StopEngine:
    """Close the engine and end its process."""


RequestCommand = OpenRequest | AppendText | Direct | FlushText | EndText | CancelRequest | GrantCredit
EngineCommand = RequestCommand | EnginePing | StopEngine

# ---------------------------------------------------------------- engine -> front


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine is loaded and takes requests."""

    info: EngineInfo
    queue: int  # requests that may wait for a slot
    window: int  # maximum frames of a request beyond its `GrantCredit`


@dataclass(frozen=True, slots=True)
class RequestStarted(_OfRequest):
    """The request has a slot."""

    queue_ms: int


@dataclass(slots=True)  # not frozen, as the others are: that takes three times as long to make
class RequestAudio:
    """The next piece of audio: pcm_s16le, 24 kHz, mono, 80 ms or several times that; the last may be shorter."""

    request_id: int
    pcm: bytes
    # Of its 10 ms blocks, as int16: measured in the front, unless the engine sends word times.
    peaks: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WordTime:
    """When a piece of the text is spoken."""

    char_start: int  # offsets in the text of the request's `AppendText` and `Say`
    char_end: int
    start_ms: int  # from the request's first sample
    end_ms: int


@dataclass(frozen=True, slots=True)
class RequestStages(_OfRequest):
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
class RequestWords(_OfRequest):
    """Word times from the engine, sent before their audio."""

    words: tuple[WordTime, ...]


@dataclass(frozen=True, slots=True)
class RequestFlushed(_OfRequest):
    """All audio of the text before the `FlushText` has been sent."""

    flush_id: str


FinishReason = Literal["end", "cancelled", "length", "error"]

# Why a piece of a text was ended by the engine, not by the model: its speech went round in a loop, fell silent, went on
# after its text, or filled its positions. `early`: the model itself ended it, with too little speech for its text.
CutReason = Literal["loop", "silence", "overrun", "positions", "early"]


@dataclass(frozen=True, slots=True)
class RequestFinished(_OfRequest):
    """The last event of a request, sent exactly once; its slot is free."""

    reason: FinishReason
    busy_ms: float = 0.0  # duration of the engine steps with this request
    code: str | None = None  # with reason "error": a code of the wire protocol
    message: str = ""
    retry_after_ms: int | None = None
    gave_way: bool = False  # its slot was taken back for another request
    cut: tuple[CutReason, ...] = ()  # why pieces of its text were ended; each reason once


@dataclass(frozen=True, slots=True)
class EnginePong:
    """Answer to `EnginePing`."""

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


RequestEvent = RequestStarted | RequestStages | RequestAudio | RequestWords | RequestFlushed | RequestFinished
EngineEvent = EngineReady | RequestEvent | EnginePong | EngineLoad
