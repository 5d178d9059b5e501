"""JSON of clients, of a bounded size, and errors that tell the field and what is allowed, never the input. Pure."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from agent_tts.errors import BadMessage, InvalidRequest, SpeechError, TextTooLong, UnsupportedFormat

UNKNOWN_FIELD = "extra_forbidden"
NOT_JSON = "the body is one JSON object, in UTF-8"
BLANK = ("string_too_short", "string_pattern_mismatch")

# A client's JSON has no more: pydantic makes an error for each unknown field. A speaker embedding has 2 048 values.
MAX_FIELDS = 128  # of one object
MAX_VALUES = 4_096  # in all objects and lists together
LIST_VALUES = 16_384  # in a body with a list, such as 1 000 rules of several fields
MAX_DEPTH = 16
SHORT_CHARS = 4 * MAX_FIELDS  # a field takes at least `"":0`: there are not too many in so short a text

Model = TypeVar("Model", bound=BaseModel)


def parse(data: str | bytes, otherwise: str, most: int = MAX_VALUES) -> dict[str, Any]:
    """The JSON object that a client has sent, in UTF-8; at most a millisecond for 64 kB, whatever is in it.

    Args:
        otherwise: the error's message if it is not a JSON object.
        most: values in all of it.

    Raises:
        BadMessage: it is none, or has too many fields or values.
    """
    found = decode(data, otherwise, most)
    if len(data) > SHORT_CHARS:
        _check_fields(found)
    return found


def decode(data: str | bytes, otherwise: str, most: int = MAX_VALUES) -> dict[str, Any]:
    """As `parse`, but with at most `most` values and any number of fields: for what is checked value by value later.

    The values are counted before any is made: 1 MB of empty lists would hold the interpreter for half a second.
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        if len(text) > SHORT_CHARS or text.count("{") + text.count("[") > MAX_DEPTH:
            _check_count(text, most)
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        raise BadMessage(otherwise) from None
    if not isinstance(found, dict):
        raise BadMessage(otherwise)
    return found


def _check_count(text: str, most: int) -> None:
    """Refuse more values than `most`, and what is nested too deep, by what stands in no string."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    if text.count('"') > 4 * most:  # a value takes two of them, and its name two
        raise _too_many(most)
    plain = '"'.join(text.split('"')[::2]).translate(_NO_SPACE)
    openings = plain.count("{") + plain.count("[")
    values = plain.count(",") + openings - plain.count("[]") - plain.count("{}")
    # Each object or list but the first is a value; in what is no JSON there may be more, and closings alone.
    if max(values, openings - 1, plain.count("]") + plain.count("}") - 1) > most:
        raise _too_many(most)
    if max(accumulate(1 if bracket in "[{" else -1 for bracket in _BRACKET.findall(plain)), default=0) > MAX_DEPTH:
        raise BadMessage(f"objects and lists are nested at most {MAX_DEPTH} deep")


def _too_many(most: int) -> BadMessage:
    return BadMessage(f"objects and lists have at most {most} values together")


_BRACKET = re.compile(r"[\[\]{}]")
_NO_SPACE = dict.fromkeys(map(ord, " \t\r\n"))


def _finite(text: str) -> float:
    """A number; raises ValueError for one that no float holds, and for the constants that Python takes for numbers."""
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


# `json.loads` would make one for each message.
_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def _check_fields(container: dict[str, Any] | list[Any]) -> None:
    """Refuse an object with too many fields, here or below: at most `MAX_DEPTH` deep, as was checked before."""
    if isinstance(container, dict) and len(container) > MAX_FIELDS:
        raise BadMessage(f"an object has at most {MAX_FIELDS} fields")
    for value in container.values() if isinstance(container, dict) else container:
        if isinstance(value, (dict, list)):
            _check_fields(value)


class Complaint(NamedTuple):
    """What is wrong with one field."""

    path: tuple[str, ...]  # names and indexes, outermost first; empty: the input as a whole
    kind: str  # pydantic's type of the error
    reason: str  # what is wrong or allowed; starts in lower case

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Complaint:
        """One entry of `ValidationError.errors()`."""
        reason = details["msg"].removeprefix("Value error, ")
        if details["type"] == "union_tag_invalid":  # it quotes the tag
            reason = f"should be one of {reason.rpartition(': ')[2]}"
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


def check_fields(model: type[Model], fields: Mapping[str, Any], spoken: str | None = None, *, depth: int = 1) -> Model:
    """The fields of the body of an HTTP request, checked; raises `InvalidRequest` or `UnsupportedFormat`.

    Args:
        spoken: the field with the text to speak.
        depth: how many parts of the path the error names.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        path, kind, reason = first_complaint(error)
    if not path:
        raise InvalidRequest(reason)
    if kind == UNKNOWN_FIELD and path[0] not in model.model_fields:
        near = difflib.get_close_matches(path[0][:64], model.model_fields, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidRequest(f"a field is not known: {hint}fields are {', '.join(model.model_fields)}")
    field = ".".join(path[:depth])
    if field == spoken and kind in BLANK:
        raise InvalidRequest(f"{field}: there is nothing to speak", field)
    message = f"{field}: {reason}"
    is_format = path[0] in ("response_format", "output_format")
    raise UnsupportedFormat(message) if is_format else InvalidRequest(message, field)


def check_body(
    model: type[Model],
    body: bytes,
    spoken: str | None = None,
    max_chars: int = 0,
    *,
    depth: int = 1,
    most: int = MAX_VALUES,
) -> Model:
    """The body of an HTTP request, checked; `max_chars` is of the text to speak. See `check_fields` and `parse`.

    Raises:
        BadMessage, UnsupportedFormat, TextTooLong: what was wrong and what is allowed, without any of the text.
    """
    wanted = check_fields(model, parse(body, NOT_JSON, most), spoken, depth=depth)
    text: str = "" if spoken is None else getattr(wanted, spoken)
    if spoken is not None and not text.strip():
        raise InvalidRequest(f"{spoken}: there is nothing to speak", spoken)
    if len(text) > max_chars:
        raise TextTooLong(f"{spoken} has more than {max_chars} characters")
    return wanted
