"""Validation errors name the field and the allowed values, and never repeat the input."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent_tts.errors import BadMessage, InvalidRequest, SpeechError, UnsupportedFormat
from agent_tts.protocol.validation import body_error, check_message

SECRET = "secret"


class Settings(BaseModel):
    model_config = ConfigDict(strict=True)

    speed: float = 1.0


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field("a", min_length=1, pattern=r"\S")
    name: str = Field("a", min_length=1)
    output: Literal["pcm"] = "pcm"
    response_format: Literal["mp3"] = "mp3"
    settings: Settings = Settings()

    @model_validator(mode="after")
    def _fits(self) -> Wanted:
        if self.name == SECRET:
            raise ValueError("Not this name")
        return self


def refused_message(fields: dict[str, Any]) -> SpeechError:
    with pytest.raises(SpeechError) as caught:
        check_message(Wanted, fields)
    return caught.value


def refused_body(body: str, depth: int = 1) -> SpeechError:
    with pytest.raises(ValidationError) as caught:
        Wanted.model_validate_json(body)
    return body_error(caught.value, Wanted, spoken="text", depth=depth)


def test_a_valid_message_is_parsed() -> None:
    assert check_message(Wanted, {"name": "b"}).name == "b"


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"settings": {"speed": SECRET}}, BadMessage, "settings.speed: input should be a valid number"),
        ({"output": SECRET}, UnsupportedFormat, "output: input should be 'pcm'"),
        ({"name": SECRET}, BadMessage, "message: not this name"),
    ],
)
def test_an_invalid_message_is_refused_with_its_field(
    fields: dict[str, Any], kind: type[SpeechError], said: str
) -> None:
    error = refused_message(fields)
    assert (type(error), error.message) == (kind, said)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (f'"{SECRET}', None, "the body is one JSON object, in UTF-8"),
        ('{"text": " "}', "text", "text: there is nothing to speak"),
        ('{"name": ""}', "name", "name: string should have at least 1 character"),
        ('{"nam": "secret"}', None, "a field is not known: did you mean name? fields are text, name, output"),
        ('{"settings": {"speed": "secret"}}', "settings", "settings: input should be a valid number"),
    ],
)
def test_an_invalid_body_is_refused_with_its_param(body: str, param: str | None, said: str) -> None:
    error = refused_body(body)
    assert isinstance(error, InvalidRequest)
    assert (error.param, error.message[: len(said)]) == (param, said)
    assert SECRET not in error.message


def test_the_param_of_a_body_has_the_requested_depth() -> None:
    assert refused_body('{"settings": {"speed": "secret"}}', depth=3).message.startswith("settings.speed: ")


def test_an_invalid_format_has_its_own_code() -> None:
    assert isinstance(refused_body('{"response_format": "secret"}'), UnsupportedFormat)
