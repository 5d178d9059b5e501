"""How a text is spoken: what a client may say of it, and what an engine is told."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

from agent_tts.text.entries import Lexicon


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
ResolvedVoice = AnyVoice | NamedVoice | StoredVoices | DesignedVoice | EmbeddedVoice


TextMode = Literal["live", "whole", "auto"]


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What a client says of a text and an engine reads."""

    voice: str | ResolvedVoice | None = None
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
    normalize: Annotated[
        bool | None, Option(help="Say numbers, money, dates and addresses in words; null: as the engine does.")
    ] = None
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

    @property
    def unpaced(self) -> bool:
        """Whether its audio is made as fast as it can be: nobody waits for it to keep a pace."""
        return self.lead_ms is None


@dataclass(frozen=True, slots=True)
class EngineOptions(CommonOptions):
    """What an engine is told of a request."""

    voice: ResolvedVoice | None = None  # None: the engine's default
    region: str | None = None  # the language with a region that the engine does not tell apart: en-GB writes 31/12


@dataclass(frozen=True, slots=True)
class SpeechOptions(CommonOptions):
    """What a client says of an utterance: everything besides the text that determines its audio, and the pacing.

    The only declaration of these options. The wire protocol, the OpenAI endpoint, `agent-tts say` and the link to the
    engine derive fields, limits, defaults and descriptions from it.
    """

    # Long enough for a mix of eight voices with weights.
    voice: Annotated[str | None, Option(help="See `agent-tts voices`; default: the engine's.", max_length=1_024)] = None
    # The released models use 1024 or 2048 values, which fit into `limits.message_bytes` at full precision.
    speaker_embedding: Annotated[
        tuple[float, ...] | None,
        Option(help="A speaker's vector, in place of a voice.", min_length=1, max_length=2_048),
    ] = None
    markup: Annotated[
        Literal["auto", "none"],
        Option(help="auto: tags (SSML and vendors') are obeyed or left out; none: they are text."),
    ] = "auto"
    breaks: Annotated[bool, Option(help="Of older clients, without effect: markup obeys <break>.")] = False
    lexicon: Annotated[
        Lexicon | None, Option(help='How words are said: {"nginx": "engine x", "GIF": {"ipa": "dʒɪf"}}.')
    ] = None


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
