"""What Cartesia's clients ask for, over every transport of theirs: fields in, fields of `agent_tts.v1` out. Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Encoding = Literal["pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"]
Rate = Literal[8_000, 16_000, 22_050, 24_000, 44_100, 48_000]

# By Cartesia's names.
ENCODINGS: dict[Encoding, str] = {
    "pcm_s16le": "pcm_s16le",
    "pcm_f32le": "pcm_f32le",
    "pcm_mulaw": "mulaw",
    "pcm_alaw": "alaw",
}

# Voices that nobody has asked for: LiveKit's class names the first, Cartesia's own the second when a text ends.
UNASKED_VOICES = {"f786b574-daa5-4673-aa0c-cbe3e8534c02", "6ccbfb76-1fc6-48f7-b71d-91ac6298247b"}

SPEEDS = {"slowest": 0.6, "slow": 0.8, "normal": 1.0, "fast": 1.25, "fastest": 1.5}


class Fields(BaseModel):
    """Unknown fields are ignored: clients send many that only mean something to Cartesia's own models."""

    model_config = ConfigDict(frozen=True, strict=True)


class Controls(Fields):
    """How to speak; in API versions up to 2024-11-13 a part of the voice."""

    speed: float | str | None = None
    emotion: str | list[str] | None = None

    @field_validator("speed")
    @classmethod
    def _is_known(cls, speed: float | str | None) -> float | str | None:
        if isinstance(speed, str) and speed not in SPEEDS:
            raise ValueError(f"should be a number or one of {', '.join(SPEEDS)}")
        return speed

    def absolute(self) -> Controls:
        """With a number from -1 to 1, as a voice has it, as a factor."""
        if not isinstance(self.speed, float):
            return self
        span = SPEEDS["fastest"] - 1 if self.speed > 0 else 1 - SPEEDS["slowest"]
        return self.model_copy(update={"speed": 1 + span * self.speed})

    def overrides(self) -> dict[str, Any]:
        """What of it the protocol has a field for."""
        fields: dict[str, Any] = {}
        if self.speed is not None:
            fields["speed"] = SPEEDS[self.speed] if isinstance(self.speed, str) else self.speed
        emotion = self.emotion[0] if isinstance(self.emotion, list) and self.emotion else self.emotion
        if isinstance(emotion, str) and emotion.lower() != "neutral":
            fields["instructions"] = f"Emotion: {emotion.partition(':')[0].lower()}."
        return fields


class VoiceRef(Fields):
    """A voice as an object."""

    id: str | None = None
    embedding: list[float] | None = None
    controls: Controls = Field(Controls(), alias="__experimental_controls")


class Samples(Fields):
    """How each sample is written."""

    encoding: Encoding = "pcm_s16le"
    sample_rate: Rate = 24_000

    @property
    def ours(self) -> str:
        """The encoding by our name."""
        return ENCODINGS[self.encoding]


class RawFormat(Samples):
    """Audio without a container."""

    container: Literal["raw"] = "raw"


class Request(Fields):
    """What every request to speak may have."""

    transcript: str = ""
    voice: str | VoiceRef | None = None
    language: str | None = None
    locale: str | None = None
    generation_config: Controls | None = None
    speed: Literal["slow", "normal", "fast"] | None = None
    normalization: str | None = None
    add_timestamps: bool | None = None

    def overrides(self) -> dict[str, Any]:
        """The fields of a session, but for its output.

        The model is not among them: the names are Cartesia's, and the voice tells which of ours speaks.
        """
        voice = self.voice if isinstance(self.voice, VoiceRef) else VoiceRef(id=self.voice)
        fields: dict[str, Any] = {
            "language": self.language or self.locale,
            "timestamps": "word" if self.add_timestamps else "none",
            "breaks": True,  # a tag that Cartesia's models obey at any time
        }
        if self.normalization is not None:
            fields["normalize"] = self.normalization != "off"
        if voice.embedding is not None:
            fields["speaker_embedding"] = voice.embedding
        elif voice.id not in UNASKED_VOICES:
            fields["voice"] = voice.id
        for controls in (voice.controls.absolute(), Controls(speed=self.speed), self.generation_config or Controls()):
            fields |= controls.overrides()
        return fields
