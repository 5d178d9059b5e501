"""Validation errors name the field and the allowed values, and never repeat the input."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent_tts.errors import BadMessage, InvalidRequest, SpeechError, UnsupportedFormat
from agent_tts.protocol import validation
from agent_tts.protocol.options import Lenient, Strict
from agent_tts.protocol.validation import MAX_DEPTH, MAX_FIELDS, MAX_VALUES, check_fields, check_message, parse
from agent_tts.serve import openai
from agent_tts.serve.dialects import routes as dialects
from agent_tts.serve.dialects.cartesia_http import CartesiaBytesRequest
from agent_tts.serve.routes import voices

SECRET = "secret"


class Settings(BaseModel):
    model_config = ConfigDict(strict=True)

    speed: float = 1.0


class Square(BaseModel):
    type: Literal["square"]


class Circle(BaseModel):
    type: Literal["circle"]


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field("a", min_length=1, pattern=r"\S")
    name: str = Field("a", min_length=1)
    output: Literal["pcm"] = "pcm"
    response_format: Literal["mp3"] = "mp3"
    settings: Settings = Settings()
    shape: Square | Circle | None = Field(None, discriminator="type")

    @model_validator(mode="after")
    def _fits(self) -> Wanted:
        if self.name == SECRET:
            raise ValueError("Not this name")
        return self


def refused_body(body: str, depth: int = 1) -> SpeechError:
    with pytest.raises(SpeechError) as caught:
        check_fields(Wanted, json.loads(body), "text", depth=depth)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"settings": {"speed": SECRET}}, BadMessage, "settings.speed: input should be a valid number"),
        ({"output": SECRET}, UnsupportedFormat, "output: input should be 'pcm'"),
        ({"name": SECRET}, BadMessage, "message: not this name"),
        ({"shape": {"type": SECRET}}, BadMessage, "shape: should be one of 'square', 'circle'"),
    ],
)
def test_an_invalid_message_is_refused_with_its_field(
    fields: dict[str, Any], kind: type[SpeechError], said: str
) -> None:
    with pytest.raises(SpeechError) as caught:
        check_message(Wanted, fields)
    assert (type(caught.value), caught.value.message) == (kind, said)


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ('{"name": "secret"}', None, "not this name"),
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


def nested(depth: int) -> dict[str, Any]:
    return {"a": nested(depth - 1)} if depth > 1 else {}


# The largest objects that are taken; each is too large with one more field, value or level.
@pytest.mark.parametrize(
    ("largest", "larger"),
    [
        (dict.fromkeys(map(str, range(MAX_FIELDS))), dict.fromkeys(map(str, range(MAX_FIELDS + 1)))),
        ({"a": [0] * (MAX_VALUES - 1)}, {"a": [0] * MAX_VALUES}),
        ({"a": [[0]] * (MAX_VALUES // 2 - 1)}, {"a": [[0]] * (MAX_VALUES // 2)}),
        (nested(MAX_DEPTH), nested(MAX_DEPTH + 1)),
    ],
    ids=["fields", "values", "values in lists", "depth"],
)
def test_an_object_of_a_client_has_a_size(largest: dict[str, Any], larger: dict[str, Any]) -> None:
    assert parse(json.dumps(largest), "") == largest
    with pytest.raises(BadMessage, match="at most"):
        parse(json.dumps(larger), "")


@pytest.mark.parametrize(
    "data", [b"\xff", "[" * 60_000, '{"a": NaN}', '{"a": [-1e999]}', f'{{"a": {"1" * 60_000}}}', "[]", "1", ""]
)
def test_what_is_no_object_is_refused(data: str | bytes) -> None:
    with pytest.raises(BadMessage, match=r"an object, please|at most 4096 values"):
        parse(data, "an object, please")


def models_of(base: type[BaseModel]) -> list[type[BaseModel]]:
    """All of a base's classes, also those that a dialect makes at import."""
    return [model for child in base.__subclasses__() for model in (child, *models_of(child))]


MODELS = [model for base in (Strict, Lenient) for model in models_of(base) if model.model_fields]
assert dialects.STREAMS  # imports all dialects
assert {openai.SpeechRequest, CartesiaBytesRequest, voices.NewClone} <= set(MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("wrong", [None, "x", []], ids=str)
def test_a_list_fails_at_its_first_wrong_value(model: type[BaseModel], wrong: object) -> None:
    """An error for each value of a list takes the front's time."""
    for name, info in model.model_fields.items():
        assert errors_of(model, {info.alias or name: [wrong] * MAX_VALUES}) < 10, name


def errors_of(model: type[BaseModel], fields: dict[str, Any]) -> int:
    try:
        model.model_validate(fields)
    except ValidationError as error:
        return error.error_count()
    return 0


def test_depth_is_counted_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_DECODER", None)
    with pytest.raises(BadMessage, match="at most 16 deep"):
        parse('{"a":' * 2_000, "an object, please")


@pytest.mark.parametrize(
    "data",
    [
        '{"a": [' + ",".join(["[]"] * 300_000) + "]}",
        *('{"a": ' + piece * 500_000 for piece in ("[", "[]", "]", "{}", "}")),
        '{"' + '":1,"' * 200_000,
    ],
)
def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch, data: str) -> None:
    """A million bytes of empty lists hold the interpreter for half a second, of brackets that are no JSON for 0.1 s."""
    monkeypatch.setattr(validation, "_DECODER", None)
    with pytest.raises(BadMessage, match="at most 4096 values together"):
        parse(data, "an object, please")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet=st.sampled_from('ab,"\\[]{}: é\n'), max_size=8),
    lambda inside: (
        st.lists(inside, max_size=4) | st.dictionaries(st.text(alphabet='a,"\\[{', max_size=4), inside, max_size=4)
    ),
    max_leaves=20,
)


def held(value: object) -> int:
    """How many values are in all objects and lists of it."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inside) + sum(map(held, inside))


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_the_count_is_exact_whatever_stands_in_strings(value: dict[str, Any], indent: int | None, ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii)
    validation._check_count(text, held(value))
    if held(value):
        with pytest.raises(BadMessage):
            validation._check_count(text, held(value) - 1)


# ---------------------------------------------------------------- null


OPTIONAL = [
    (kind, name)
    for kind in dict.fromkeys(MODELS)
    for name, field in kind.model_fields.items()
    if not field.is_required()
]


def test_null_is_taken_for_every_field_that_may_be_left_out() -> None:
    """By one rule, in the base of all messages: what a vendor's SDK may send as null needs no line of its own."""
    assert {"SpeechRequest", "VllmConfig", "ElevenLabsRequest", "CartesiaRequest", "JambonzRequest", "NewClone"} <= {
        kind.__name__ for kind, _ in OPTIONAL
    }
    for kind, name in OPTIONAL:
        try:
            kind.model_validate({name: None})
        except ValidationError as error:
            wrong = {each["loc"][:1]: each["type"] for each in error.errors() if each["type"] != "missing"}
            assert (name,) not in wrong, (kind.__name__, name, wrong)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (
            {"speed": None, "stream_format": None, "response_format": None, "model": None},
            (1.0, "audio", "mp3", "tts-1"),
        ),
        ({"speed": 2, "stream_format": "sse", "response_format": None, "model": None}, (2.0, "sse", "mp3", "tts-1")),
    ],
)
def test_null_is_the_default_and_changes_nothing_else(fields: dict[str, Any], found: tuple[Any, ...]) -> None:
    request = openai.SpeechRequest.model_validate({"input": "Hi", **fields})
    assert tuple(getattr(request, name) for name in fields) == found


def test_null_keeps_its_meaning_where_it_has_one() -> None:
    request = openai.SpeechRequest.model_validate({"input": "Hi", "leading_silence_ms": None})
    assert request.leading_silence_ms is None


@pytest.mark.parametrize("fields", [{"input": None}, {"input": "Hi", "voise": None}])
def test_null_is_no_text_and_no_excuse_for_a_wrong_name(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        openai.SpeechRequest.model_validate(fields)
