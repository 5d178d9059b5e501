"""The fields of `SpeechOptions` as pydantic fields of a client's message."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, WithJsonSchema, create_model

from agent_tts.options import Option, Sampling, SpeechOptions, declared
from agent_tts.text.entries import Lexicon


class Strict(BaseModel):
    """Base of configurations. Unknown fields are errors, so that a misspelt setting is not ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Lenient(BaseModel):
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


def option_model(*kinds: type, without: Collection[str] = ()) -> type[BaseModel]:
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
    """The sampling parameters in a message."""
    return Sampling(**{field.name: getattr(values, field.name) for field in dataclasses.fields(Sampling)})
