"""Bodies of `multipart/form-data`. Sans-I/O; they stay in memory."""

from __future__ import annotations

import logging
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from agent_tts.errors import BadMessage

CONTENT_TYPE = "multipart/form-data"
MAX_PARTS = 16
MAX_TEXT_BYTES = 16_384  # of a part that is not a file

logging.getLogger("python_multipart").disabled = True  # it logs errors of clients, which are answered
logging.getLogger("python_multipart.multipart").disabled = True


def parse(content_type: str, body: bytes) -> dict[str, str | bytes]:
    """The parts of a body by name: bytes where a part has a file name, otherwise text.

    Raises:
        BadMessage: it is malformed, has too many parts or a name twice, or a text is too long or not UTF-8.
    """
    form = _Form()
    callbacks: Any = {name: getattr(form, name) for name in dir(form) if name.startswith("on_")}
    _, options = parse_options_header(content_type)
    try:
        MultipartParser(options.get(b"boundary", b""), callbacks).write(body)
    except FormParserError:
        raise _broken() from None
    if not form.ended:
        raise _broken()
    return form.fields


def _broken() -> BadMessage:
    return BadMessage(f"the body must be complete {CONTENT_TYPE}: named parts between boundaries")


class _Form:
    def __init__(self) -> None:
        # Complete parts.
        self.fields: dict[str, str | bytes] = {}
        # The part that is being read: its headers, the current header, and its data.
        self._headers: dict[str, str] = {}
        self._name = b""
        self._value = b""
        self._data = bytearray()
        # Whether the final boundary has come.
        self.ended = False

    # The callbacks of `MultipartParser`.

    def on_part_begin(self) -> None:
        if len(self.fields) == MAX_PARTS:
            raise BadMessage(f"a form has at most {MAX_PARTS} parts")
        self._headers.clear()
        self._data.clear()

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._name = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data += memoryview(data)[start:end]

    def on_part_end(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        if b"name" not in options:
            raise _broken()
        name = options[b"name"].decode("latin-1")
        if name in self.fields:
            raise BadMessage("a form must not have two parts of one name")
        self.fields[name] = bytes(self._data) if b"filename" in options else self._text()

    def on_end(self) -> None:
        self.ended = True

    def _text(self) -> str:
        if len(self._data) > MAX_TEXT_BYTES:
            raise BadMessage(f"a part without a file name has at most {MAX_TEXT_BYTES} bytes")
        try:
            return self._data.decode()
        except UnicodeDecodeError:
            raise BadMessage("a part without a file name must be UTF-8 text") from None
