"""The values exchanged between the front process and the engine process.

A request is one utterance in the engine. Its request_id is a u32 that the front never reuses while the engine process
lives, so that late events of an ended request are recognised. Each engine process of a node has its own ids.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

from agent_tts.text.entries import Lexicon

SAMPLE_RATE = 24_000  # Hz, mono, of every engine
FRAME_SAMPLES = 1_920  # 80 ms
FRAME_MS = 80
FRAME_BYTES = 2 * FRAME_SAMPLES  # pcm_s16le


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Description and limits of a field of `SpeechOptions` or `Sampling`, wherever a client may set it."""

    help: str
    ge: float | None = None  # limits of a number
    gt: float | None = None
    le: float | None = None
    max_length: int | None = None  # of a text or a vector
    min_length: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of the neural engines. None is the model's own, of its generation_config.json."""

    temperature: Annotated[
        float | None, Option(help="Of qwen3; 0 is greedy; default: the model's, as of the next three.", ge=0, le=5)
    ] = None
    top_k: Annotated[int | None, Option(help="Of qwen3; 0 keeps all.", ge=0, le=100_000)] = None
    top_p: Annotated[float | None, Option(help="Of qwen3; 1 keeps all.", gt=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Option(help="Of qwen3; 1 is none.", gt=0, le=10)] = None


@dataclass(frozen=True, slots=True)
class NamedVoice:
    """A built-in voice of the engine."""

    name: str


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A cloned voice of the library with its weight in a mix."""

    stored: str  # its name
    version: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class StoredVoices:
    """One cloned voice of the library, or a mix of several; the weights sum to 1."""

    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True)
class DesignedVoice:
    """The voice that `prompt` and the request's instructions describe together."""

    prompt: str = ""


@dataclass(frozen=True, slots=True)
class EmbeddedVoice:
    """A voice given by a speaker embedding."""

    vector: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AnyVoice:
    """No particular voice: it varies with the seed."""


# A voice resolved by `speech.routing`. The wire distinguishes the classes by their field names.
ResolvedVoice = NamedVoice | StoredVoices | DesignedVoice | EmbeddedVoice | AnyVoice


TextMode = Literal["live", "whole", "auto"]


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """How a text is spoken: everything besides the text that determines its audio, and the pacing.

    The only declaration of these options. The wire protocol, the OpenAI endpoint, `agent-tts say` and the pipe to the
    engine derive fields, limits, defaults and descriptions from it.
    """

    # Long enough for a mix of eight voices with weights.
    voice: Annotated[str | None, Option(help="See `agent-tts voices`; default: the engine's.", max_length=1_024)] = None
    language: Annotated[
        str, Option(help="A code (de, en-gb) or an English name; auto is the voice's.", max_length=64)
    ] = "auto"
    instructions: Annotated[
        str | None, Option(help="How to speak; of a designed voice, who speaks.", max_length=2_000)
    ] = None
    seed: Annotated[int | None, Option(help="The same seed and text is the same audio.", ge=0, le=2**63 - 1)] = None
    speed: Annotated[float, Option(help="2 speaks twice as fast.", ge=0.25, le=4)] = 1.0
    pitch: Annotated[float, Option(help="1 is the voice's own.", ge=0.5, le=2)] = 1.0
    clean: Annotated[bool, Option(help="Make markdown, links and emoji speakable.")] = True
    sampling: Sampling = field(default_factory=Sampling)
    lead_ms: Annotated[int | None, Option(help="How far audio may run ahead of real time; null: unpaced.", ge=0)] = (
        1_000
    )
    model: Annotated[str | None, Option(help="A model's name; default: one that speaks the voice.", max_length=256)] = (
        None
    )
    # The released models use 1024 or 2048 values, which fit into `limits.message_bytes` at full precision.
    speaker_embedding: Annotated[
        tuple[float, ...] | None,
        Option(help="A speaker's vector, in place of a voice.", min_length=1, max_length=2_048),
    ] = None
    normalize: Annotated[bool, Option(help="Say numbers, money, dates and addresses in words.")] = False
    text_mode: Annotated[
        TextMode,
        Option(
            help="Of qwen3: live speaks while text comes; whole reads a piece of the text to its end first; "
            "auto is whole where a piece is complete when it begins."
        ),
    ] = "live"
    leading_silence_ms: Annotated[
        int | None, Option(help="Silence of a voice before its speech that is sent; null: all.", ge=0, le=10_000)
    ] = 20
    loudness: Annotated[
        float | None, Option(help="Loudness that voices are brought to, LUFS (-18); null: their own.", ge=-36, le=-12)
    ] = None
    markup: Annotated[
        Literal["auto", "none"],
        Option(help="auto: tags (SSML and vendors') are obeyed or left out; none: they are text."),
    ] = "auto"
    breaks: Annotated[bool, Option(help="Of older clients, without effect: markup obeys <break>.")] = False
    lexicon: Annotated[
        Lexicon | None, Option(help='How words are said: {"nginx": "engine x", "GIF": {"ipa": "dʒɪf"}}.')
    ] = None  # looked up in the front: None in an engine
    # The meaning of `voice` and `speaker_embedding`. None before routing, and for the engine's default voice.
    resolved: ResolvedVoice | None = None


@functools.cache  # called for every context; resolving the hints takes 0.5 ms
def declared(kind: type) -> dict[str, tuple[Any, Option, Any]]:
    """(type, `Option`, default) of each field of `SpeechOptions` or `Sampling` that has an `Option`."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (hints[field.name].__origin__, hints[field.name].__metadata__[0], field.default)
        for field in dataclasses.fields(kind)
        if hasattr(hints[field.name], "__metadata__")
    }


def within(name: str, value: float) -> float:
    """A number as the option `name` of `SpeechOptions`: the nearest that its limits allow."""
    option = declared(SpeechOptions)[name][1]
    low, high = (limit if limit is not None else value for limit in (option.ge, option.le))
    return min(max(value, low), high)


VoiceKind = Literal["named", "designed", "cloned"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model of an engine, with the kind of voices that it speaks."""

    name: str  # what a client passes as `model`
    kind: VoiceKind
    source: str  # folder of its checkpoint; never sent to a client
    vector_size: int | None = None  # values of a speaker vector; None unless it speaks cloned voices
    speakers: tuple[str, ...] = ()  # its named voices, the default first; empty unless it speaks those


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that an engine can speak."""

    name: str  # what a client passes as `voice`
    languages: tuple[str, ...]  # BCP 47 codes; the first is spoken when the language is "auto"
    description: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Description of an engine, sent once when it is ready."""

    engine: str  # "espeak", "tone", "qwen3"
    model: str  # a name for people and for /v1/models
    slots: int  # requests that may speak at once
    voices: tuple[Voice, ...]
    default_voice: str
    languages: dict[str, str]  # every accepted spelling, lower case ("german", "de", "de-de") -> code
    aliases: dict[str, str] = field(default_factory=dict)  # other voice names -> the engine's
    aligns_words: bool = False  # whether it sends word times; otherwise they are estimated
    performs: tuple[str, ...] = ("pause",)  # which directives have an effect: abilities of `text/directives.py`
    sample_rate: int = SAMPLE_RATE
    models: tuple[Model, ...] = ()  # empty without a choice of models
    watermark: str | None = None  # "audioseal": an inaudible one is in all audio


@dataclass(frozen=True, slots=True)
class _OfRequest:
    request_id: int


# ---------------------------------------------------------------- directives

MAX_PAUSE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence between the text before it and the text after it."""

    ms: int  # at most MAX_PAUSE_MS


@dataclass(frozen=True, slots=True)
class Prosody:
    """From here to the next one: factors on the request's own speed, loudness (of samples) and pitch."""

    speed: float = 1.0
    volume: float = 1.0
    pitch: float = 1.0


@dataclass(frozen=True, slots=True)
class Style:
    """From here to the next one: how to speak; None: as the request's own instructions say."""

    instructions: str | None


@dataclass(frozen=True, slots=True)
class Language:
    """From here to the next one: the language, as the client named it; None: the request's own."""

    code: str | None


@dataclass(frozen=True, slots=True)
class Say:
    """Text that is said in another way than it is written.

    `text` is a part of the request's text, in no `AppendText`. Of `ipa` and `alias`, the first that the engine can
    speak is spoken; without both, `text`.
    """

    text: str
    alias: str | None = None
    ipa: str | None = None


# What the markup of a text asks for at one place in it. An engine ignores what it cannot perform.
Directive = Pause | Prosody | Style | Language | Say


# ---------------------------------------------------------------- front -> engine


@dataclass(frozen=True, slots=True)
class OpenRequest(_OfRequest):
    """A new request. It gets a slot at once or waits in the queue."""

    options: SpeechOptions
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
