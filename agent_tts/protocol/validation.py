"""Validation errors of pydantic as errors for a client: the field and what is allowed, never the input. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from agent_tts.errors import BadMessage, InvalidRequest, SpeechError, TextTooLong, UnsupportedFormat

UNKNOWN_FIELD = "extra_forbidden"
BLANK = ("string_too_short", "string_pattern_mismatch")

Model = TypeVar("Model", bound=BaseModel)


class Complaint(NamedTuple):
    """What is wrong with one field."""

    path: tuple[str, ...]  # names and indexes, outermost first; empty: the input as a whole
    kind: str  # pydantic's type of the error
    reason: str  # what is wrong or allowed; starts in lower case

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Complaint:
        """One entry of `ValidationError.errors()`."""
        reason = details["msg"].removeprefix("Value error, ")
        return cls(tuple(map(str, details["loc"])), details["type"], reason[0].lower() + reason[1:])


def first_complaint(error: ValidationError) -> Complaint:
    return Complaint.of(error.errors(include_url=False, include_input=False, include_context=False)[0])


def message_error(complaint: Complaint, field: str | None = None) -> SpeechError:
    """The error for a message of a WebSocket; `field` is told instead of the complaint's path."""
    kind = UnsupportedFormat if complaint.path[:1] in (("output",), ("output_format",)) else BadMessage
    return kind(f"{field or '.'.join(complaint.path) or 'message'}: {complaint.reason}")


def check_message(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """A message of a WebSocket, or its query, checked; raises `BadMessage` or `UnsupportedFormat`."""
    try:
        return model.model_validate(dict(fields))
    except ValidationError as error:
        raise message_error(first_complaint(error)) from None


def body_error(
    error: ValidationError, model: type[BaseModel], *, spoken: str | None = None, depth: int = 1
) -> SpeechError:
    """The error for the body of an HTTP request, which was checked against `model`.

    Args:
        spoken: the field with the text to speak.
        depth: how many parts of the path the error names.
    """
    path, kind, reason = first_complaint(error)
    if not path:
        return InvalidRequest("the body is one JSON object, in UTF-8")
    if kind == UNKNOWN_FIELD and path[0] not in model.model_fields:
        near = difflib.get_close_matches(path[0][:64], model.model_fields, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return InvalidRequest(f"a field is not known: {hint}fields are {', '.join(model.model_fields)}")
    field = ".".join(path[:depth])
    if field == spoken and kind in BLANK:
        return InvalidRequest(f"{field}: there is nothing to speak", field)
    message = f"{field}: {reason}"
    is_format = path[0] in ("response_format", "output_format")
    return UnsupportedFormat(message) if is_format else InvalidRequest(message, field)


def check_body(model: type[Model], body: bytes, spoken: str, max_chars: int, *, depth: int = 1) -> Model:
    """The body of an HTTP request that speaks at most `max_chars`, checked; for the other arguments see `body_error`.

    Raises:
        InvalidRequest, UnsupportedFormat, TextTooLong: what was wrong and what is allowed, without any of the text.
    """
    try:
        wanted = model.model_validate_json(body)
    except ValidationError as error:
        raise body_error(error, model, spoken=spoken, depth=depth) from None
    text: str = getattr(wanted, spoken)
    if not text.strip():
        raise InvalidRequest(f"{spoken}: there is nothing to speak", spoken)
    if len(text) > max_chars:
        raise TextTooLong(f"{spoken} has more than {max_chars} characters")
    return wanted
