"""What an engine is: the format of its audio, its voices and its models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SAMPLE_RATE = 24_000  # Hz, mono, of every engine
FRAME_SAMPLES = 1_920  # 80 ms
FRAME_MS = 80
FRAME_BYTES = 2 * FRAME_SAMPLES  # pcm_s16le

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
    name: str  # what a client passes as `voice`
    languages: tuple[str, ...]  # BCP 47 codes; the first is spoken when the language is "auto"
    description: str = ""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    engine: str  # "hibari", "espeak", "tone", "qwen3", "vox"
    model: str  # a name for people and for /v1/models
    slots: int  # requests that may speak at once
    voices: tuple[Voice, ...]
    default_voice: str
    languages: dict[str, str]  # every accepted spelling, lower case ("german", "de", "de-de") -> code
    aliases: dict[str, str] = field(default_factory=dict)  # other voice names -> the engine's
    aligns_words: bool = (
        False  # whether it sends the times of words; otherwise they are estimated, between those it sends
    )
    sample_rate: int = SAMPLE_RATE
    models: tuple[Model, ...] = ()  # empty without a choice of models
    watermark: str | None = None  # "audioseal": an inaudible one is in all audio
