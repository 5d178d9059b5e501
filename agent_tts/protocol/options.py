"""The options of speech (`events.SpeechOptions`) as fields of a client's message, with limits and descriptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from agent_tts.events import Option, Sampling, SpeechOptions, declared


class Strict(BaseModel):
    """Unknown fields of a configuration are errors: a misspelt setting must not be ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


def limits(option: str | Option) -> dict[str, Any]:
    """The limits of an option, or of the one of `SpeechOptions` with this name, for pydantic's `Field`."""
    if isinstance(option, str):
        option = declared(SpeechOptions)[option][1]
    return {name: value for name, value in dataclasses.asdict(option).items() if value is not None and name != "help"}


VoiceName = Annotated[str, Field(**limits("voice"))]
# Not strict: JSON has no tuples.
SpeakerEmbedding = Annotated[tuple[float, ...], Field(strict=False, **limits("speaker_embedding"))]


def option_model(*kinds: type, without: Collection[str] = ()) -> type[BaseModel]:
    """A base class with the declared options of `kinds` as fields."""
    fields: dict[str, Any] = {}
    for kind in kinds:
        for name, (hint, option, default) in declared(kind).items():
            hint = SpeakerEmbedding | None if name == "speaker_embedding" else hint
            fields[name] = (hint, Field(default, description=option.help, **limits(option)))
    return create_model("Options", __base__=Strict, **{name: fields[name] for name in fields if name not in without})


def speech_options(values: BaseModel, **others: Any) -> SpeechOptions:
    """The options that a message holds by name; `others` take their place."""
    names = declared(SpeechOptions).keys() - others.keys()
    return SpeechOptions(**{name: getattr(values, name) for name in names}, **others)


def sampling_of(values: BaseModel) -> Sampling:
    """The fields of `Sampling` that a message holds."""
    return Sampling(**{field.name: getattr(values, field.name) for field in dataclasses.fields(Sampling)})
