from __future__ import annotations

import contextlib
import gc
import io

import hypothesis.strategies as st
import pytest
from hypothesis import given
from python_multipart.multipart import MultipartParser

from agent_tts.errors import BadMessage
from agent_tts.serve.routes import multipart
from agent_tts.serve.routes.multipart import MAX_PARTS, MAX_TEXT_BYTES, parse
from tests.examples import examples

TYPE = "multipart/form-data; boundary=XX"


def part(name: str, data: bytes, *headers: str, file: str | None = None) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{name}"' + (f'; filename="{file}"' if file else "")
    return "\r\n".join(["--XX", disposition, *headers, "", ""]).encode() + data + b"\r\n"


END = b"--XX--\r\n"
GOOD = part("name", "böb".encode()) + part("clip", b"\0\r\n--X\xff", "Content-Type: audio/wav", file="a.wav") + END


def test_files_are_bytes_and_the_rest_is_text() -> None:
    assert parse(TYPE, GOOD) == {"name": "böb", "clip": b"\0\r\n--X\xff"}
    assert parse('multipart/form-data; charset=x; boundary="XX"', GOOD) == parse(TYPE, GOOD)


@pytest.mark.parametrize("size", [*range(1, 24), len(GOOD) - 1])
def test_pieces_may_end_anywhere(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parse(TYPE, GOOD)
    monkeypatch.setattr(multipart, "CHUNK_BYTES", size)
    assert parse(TYPE, GOOD) == expected
    with pytest.raises(BadMessage):
        parse(TYPE, GOOD[: -len("--\r\n")])


def test_a_truncated_form_is_refused() -> None:
    for end in range(len(GOOD) - len("\r\n")):
        with pytest.raises(BadMessage):
            parse(TYPE, GOOD[:end])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        part("a", b"1") + part("a", b"2") + END,
        part("a", b"\xff") + END,
        part("a", b"x" * (MAX_TEXT_BYTES + 1)) + END,
        b"".join(part(f"a{i}", b"") for i in range(MAX_PARTS + 1)) + END,
        b"--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
        b"--XX\r\n\r\nx\r\n" + END,
        part("a", b"1", *(f"X-{i}: y" for i in range(1_000))) + END,
        part("a", b"1", "X: " + "y" * 100_000) + END,
        GOOD.replace(b"XX", b"YY"),
    ],
)
def test_other_forms_are_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        parse(TYPE, body)


@pytest.mark.parametrize("body", [GOOD, GOOD[:-9], GOOD[:-6] + part("clip", b"", file="b") + END])
def test_files_go_with_their_form(body: bytes) -> None:
    """Not with the next full collection of the node, of which there is one after 1.4 million objects."""
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(BadMessage):
            parse(TYPE, body)
        assert not [each for each in gc.get_objects() if isinstance(each, io.BytesIO | MultipartParser)]
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "type_", ["", "multipart/form-data", "multipart/form-data; boundary=", f"{TYPE}{'x' * 999}", f"{TYPE}{';' * 300}"]
)
def test_a_form_needs_its_boundary(type_: str) -> None:
    with pytest.raises(BadMessage):
        parse(type_, GOOD)


HEADER = st.characters(max_codepoint=255)  # as servers decode header bytes


@examples(300)
@given(st.binary(max_size=200), st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.text(HEADER, max_size=40))
def test_any_body_is_a_form_or_a_documented_error(junk: bytes, start: int, end: int, type_: str) -> None:
    for kind in (TYPE, type_, f"{TYPE}{type_}"):
        try:
            parse(kind, GOOD[:start] + junk + GOOD[end:])
        except BadMessage:
            continue
