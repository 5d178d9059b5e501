"""Bodies of `multipart/form-data`. Sans-I/O; they stay in memory."""

from __future__ import annotations

import logging
import math
from io import BytesIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from agent_tts.errors import BadMessage

CONTENT_TYPE = "multipart/form-data"
MAX_PARTS = 16
MAX_TEXT_BYTES = 16_384  # of a part that is not a file
MAX_TYPE_CHARS = 256  # of the content type; a boundary has at most 70
CHUNK_BYTES = 65_536  # a body is read in such pieces: other threads wait for the interpreter during each

logging.getLogger("python_multipart").disabled = True  # it logs errors of clients, which are answered
logging.getLogger("python_multipart.multipart").disabled = True


def parse(content_type: str, body: bytes) -> dict[str, str | bytes]:
    """The parts of a body by name: bytes where a part has a file name, otherwise text.

    Raises:
        BadMessage: it is malformed, has too many parts or a name twice, or a text is too long or not UTF-8.
    """
    if len(content_type) > MAX_TYPE_CHARS:
        raise _broken()
    form = _Form()
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    in_memory = {"MAX_MEMORY_FILE_SIZE": math.inf}
    parser = FormParser(CONTENT_TYPE, form.add_text, form.add_file, form.end, boundary, config=in_memory)
    try:
        for at in range(0, len(body), CHUNK_BYTES):
            parser.write(body[at : at + CHUNK_BYTES])
    except FormParserError:
        raise _broken() from None
    finally:
        parser.parser = None  # they hold one another, and the files: a collection would come after many forms
    if not form.ended:
        raise _broken()
    return form


def _broken() -> BadMessage:
    return BadMessage(f"the body must be complete {CONTENT_TYPE}: named parts between boundaries")


class _Form(dict[str, str | bytes]):
    """The complete parts, by name."""

    ended = False  # the final boundary has come

    def add_text(self, part: Field) -> None:
        data = part.value or b""
        if len(data) > MAX_TEXT_BYTES:
            raise BadMessage(f"a part without a file name has at most {MAX_TEXT_BYTES} bytes")
        try:
            self._add(part.field_name, data.decode())
        except UnicodeDecodeError:
            raise BadMessage("a part without a file name must be UTF-8 text") from None

    def add_file(self, part: File) -> None:
        file = part.file_object
        assert isinstance(file, BytesIO)  # forms stay in memory
        self._add(part.field_name, file.getvalue())

    def end(self) -> None:
        self.ended = True

    def _add(self, name: bytes | None, value: str | bytes) -> None:
        if name is None:
            raise _broken()
        key = name.decode("latin-1")
        if len(self) == MAX_PARTS:
            raise BadMessage(f"a form has at most {MAX_PARTS} parts")
        if key in self:
            raise BadMessage("a form must not have two parts of one name")
        self[key] = value
