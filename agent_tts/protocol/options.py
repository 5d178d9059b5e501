"""The fields of `SpeechOptions` as pydantic fields of a client's message, and the options of a session."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection
from typing import Annotated, Any, Literal, NoReturn, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from agent_tts.errors import BadMessage, UnsupportedFormat
from agent_tts.options import Option, Sampling, SpeechOptions, declared
from agent_tts.protocol.validation import UNKNOWN_FIELD, first_complaint, message_error
from agent_tts.text.entries import Lexicon


class _Nullable(BaseModel):
    """A null is absent, where it is no value of the field and the field has a default: clients send both."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        if not isinstance(given, dict) or None not in given.values():
            return given
        return {name: value for name, value in given.items() if value is not None or name not in _nullable(cls)}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name in _nullable(cls) & properties.keys():
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}
        return schema


@functools.cache
def _nullable(model: type[BaseModel]) -> set[str]:
    """The fields of a model whose null is their default."""
    return {
        name
        for name, field in model.model_fields.items()
        if not field.is_required() and type(None) not in get_args(field.annotation)
    }


class Strict(_Nullable):
    """Base of configurations. Unknown fields are errors, so that a misspelt setting is not ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Lenient(_Nullable):
    """Base of clients' messages. Unknown fields are ignored: newer clients and clients of other vendors send them."""

    model_config = ConfigDict(frozen=True, strict=True)


def limits(option: str | Option) -> dict[str, Any]:
    """Arguments of pydantic's `Field`: the limits of an `Option` or of a field of `SpeechOptions`."""
    if isinstance(option, str):
        option = declared(SpeechOptions)[option][1]
    return {name: value for name, value in dataclasses.asdict(option).items() if value is not None and name != "help"}


VoiceName = Annotated[str, Field(**limits("voice"))]
# Not strict, because JSON has no tuples. Lists fail at their first wrong value: an error for each takes long.
SpeakerEmbedding = Annotated[tuple[float, ...], Field(strict=False, fail_fast=True, **limits("speaker_embedding"))]


def _lexicon(value: object) -> Lexicon | None:
    if value is None or isinstance(value, Lexicon):  # an adapter has made it once for all contexts
        return value
    if not isinstance(value, dict):
        raise ValueError("should be an object: words, and what is said for them")
    return Lexicon.of(value)


LexiconField = Annotated[
    Lexicon | None,
    PlainValidator(_lexicon),
    PlainSerializer(lambda lexicon: None if lexicon is None else lexicon.mapping()),
    WithJsonSchema({"type": ["object", "null"], "additionalProperties": {"type": ["string", "object"]}}),
]
_FIELDS: dict[str, Any] = {"speaker_embedding": SpeakerEmbedding | None, "lexicon": LexiconField}


def option_model(*kinds: type, without: Collection[str] = ()) -> Any:
    """A base class with the options of `kinds` as fields, except `without`."""
    fields: dict[str, Any] = {}
    for kind in kinds:
        for name, (hint, option, default) in declared(kind).items():
            fields[name] = (_FIELDS.get(name, hint), Field(default, description=option.help, **limits(option)))
    return create_model("Options", __base__=Strict, **{name: fields[name] for name in fields if name not in without})


def speech_options(values: BaseModel, **others: Any) -> SpeechOptions:
    """The options in a message; `others` replace its fields."""
    names = declared(SpeechOptions).keys() - others.keys()
    return SpeechOptions(**{name: getattr(values, name) for name in names}, **others)


def sampling_of(values: BaseModel) -> Sampling:
    return Sampling(**{field.name: getattr(values, field.name) for field in dataclasses.fields(Sampling)})


# ---------------------------------------------------------------- a session

# Minimum of lead_ms: one frame, plus the time to wake several utterances at once. A lower lead would cause gaps. The
# node's maximum limits the audio that a cancel discards.
MIN_LEAD_MS = 120

Framing = Literal["binary", "base64"]


Encoding = Literal["pcm_s16le", "pcm_f32le", "mulaw", "alaw", "opus", "ogg_opus", "mp3"]
SampleRate = Literal[8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
SAMPLE_RATES: tuple[int, ...] = get_args(SampleRate)

# Sample rates of encodings with restrictions. Ogg counts Opus samples at 48 kHz regardless of the audio.
RATES_OF = {"opus": (8_000, 16_000, 24_000, 48_000), "ogg_opus": (48_000,)}


def check_format(encoding: str, sample_rate: int) -> None:
    """Raise `UnsupportedFormat`, with the allowed values, unless `make_encoder` supports the combination."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"encoding is one of {', '.join(ENCODINGS)}")
    rates = RATES_OF.get(encoding, SAMPLE_RATES)
    if sample_rate not in rates:
        raise UnsupportedFormat(f"sample_rate of {encoding} is one of {', '.join(map(str, rates))}")


class OutputFormat(Strict):
    """The format in which audio is sent."""

    encoding: Encoding = "pcm_s16le"
    sample_rate: SampleRate = 24_000
    bit_rate: int | None = Field(None, ge=8_000, le=320_000)  # bits per second of ogg_opus and mp3; None: the default
    framing: Framing = "binary"

    @model_validator(mode="after")
    def _has_an_encoder(self) -> Self:
        try:
            check_format(self.encoding, self.sample_rate)
        except UnsupportedFormat as error:
            raise ValueError(error.message) from None
        return self


class SamplingFields(option_model(Sampling)):
    """See `Sampling`."""


class SessionConfig(option_model(SpeechOptions)):
    """All options of a client. A context inherits its session's options and may override each."""

    timestamps: Literal["word", "none"] = "word"
    output: OutputFormat = OutputFormat()
    sampling: SamplingFields = SamplingFields()

    def merged(self, fields: dict[str, Any], max_lead_ms: int) -> SessionConfig:
        """This configuration with `fields` replaced; `output` and `sampling` are merged field by field.

        Raises:
            BadMessage, UnsupportedFormat: a field is unknown or not allowed; the configuration is unchanged.
        """
        new = self.model_dump(exclude={"lexicon"}) | {"lexicon": self.lexicon}  # made once, not for each context
        for name, value in fields.items():
            nested = new.get(name)
            new[name] = {**nested, **value} if isinstance(nested, dict) and isinstance(value, dict) else value
        new |= replaced_by(fields)
        try:
            merged: SessionConfig = SessionConfig.model_validate(new)
        except ValidationError as error:
            refuse(error, "session")
        if merged.lead_ms is not None:
            merged = merged.model_copy(update={"lead_ms": min(max(merged.lead_ms, MIN_LEAD_MS), max_lead_ms)})
        return merged

    def options(self) -> SpeechOptions:
        return speech_options(self, sampling=sampling_of(self.sampling))


def replaced_by(fields: dict[str, Any]) -> dict[str, None]:
    """What `fields` replace besides themselves: a voice replaces an earlier speaker embedding, and the reverse."""
    pairs = (("voice", "speaker_embedding"), ("speaker_embedding", "voice"))
    return {other: None for name, other in pairs if fields.get(name) is not None and other not in fields}


def refuse(error: ValidationError, what: str) -> NoReturn:
    """Raise the error of a configuration or a message."""
    complaint = first_complaint(error)
    where = complaint.path
    if complaint.kind == UNKNOWN_FIELD:
        nested: dict[str, type[BaseModel]] = {"output": OutputFormat, "sampling": SamplingFields}
        allowed = nested.get(where[0], SessionConfig) if len(where) > 1 else SessionConfig
        raise BadMessage(f"{what} has a field that is not known; fields are {', '.join(allowed.model_fields)}")
    raise message_error(complaint, ".".join([what, *where]))
