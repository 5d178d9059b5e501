"""Text that arrives on a pipe or a terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from agent_tts.cli.say import READ_AHEAD, READ_BYTES, arriving, once

pytestmark = pytest.mark.real_time  # a thread reads stdin


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    for fd in (write, read):
        with suppress(OSError):
            os.close(fd)


async def test_text_is_yielded_as_soon_as_it_is_written(pipe: tuple[int, int]) -> None:
    read, write = pipe
    source = arriving(read, lines=False)
    for text in ("Hel", "lo. ", "w"):
        os.write(write, text.encode())
        assert await anext(source) == text
    os.close(write)
    assert [text async for text in source] == [None]


async def test_a_character_split_between_two_reads_is_joined(pipe: tuple[int, int]) -> None:
    read, write = pipe
    source = arriving(read, lines=False)
    os.write(write, "a\u20ac".encode()[:2])
    assert await anext(source) == "a"
    os.write(write, "\u20acb".encode()[1:])
    assert await anext(source) == "\u20acb"
    os.write(write, b"\xff\xe2")
    os.close(write)
    assert "".join([text or "" async for text in source]) == "\ufffd\ufffd"


async def test_a_pause_completes_the_text_once(pipe: tuple[int, int]) -> None:
    read, write = pipe
    source = arriving(read, lines=False, idle_s=0.05)
    os.write(write, b"one")
    assert await anext(source) == "one"
    assert await anext(source) is None
    os.write(write, b"two")
    assert await anext(source) == "two"
    os.close(write)
    assert [text async for text in source] == [None]


async def test_a_text_of_any_length_is_read_with_little_read_ahead(pipe: tuple[int, int]) -> None:
    read, write = pipe
    source = arriving(read, lines=False)
    os.write(write, b"x" * READ_BYTES * (READ_AHEAD + 4))
    os.close(write)
    async with asyncio.timeout(10):
        lengths = [len(text or "") async for text in source]
    assert sum(lengths) == READ_BYTES * (READ_AHEAD + 4)


async def test_a_typed_line_is_complete(pipe: tuple[int, int]) -> None:
    read, write = pipe
    source = arriving(read, lines=True)
    os.write(write, b"one\n")
    assert [await anext(source), await anext(source)] == ["one\n", None]
    os.close(write)
    assert [text async for text in source] == [None]


async def test_a_whole_text_is_yielded_once() -> None:
    assert [text async for text in once("all")] == ["all", None]
