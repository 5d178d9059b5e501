from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from agent_tts.serve.telemetry import logs
from agent_tts.serve.telemetry.logs import MAX_WAITING_BYTES, LineWriter

LINE = "x" * 999 + "\n"
MANY = MAX_WAITING_BYTES // len(LINE) + 200  # more than a pipe and the queue hold


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


class Counted:
    def __init__(self, fd: int) -> None:
        self.dropped = 0
        self.told: list[int] = []
        self.moving = threading.Event()
        self.writer = LineWriter(fd, self.drop, self.tell)

    def drop(self) -> None:
        self.dropped += 1

    def tell(self, lines: int) -> None:
        self.told.append(lines)
        self.moving.set()


def read(fd: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += os.read(fd, 1 << 16)
    return got


def test_lines_are_written_in_order_before_stop_returns(pipe: tuple[int, int]) -> None:
    counted = Counted(pipe[1])
    for number in range(100):
        counted.writer.write(f"{number} \udcff\n")
    counted.writer.stop()
    counted.writer.stop()
    assert os.read(pipe[0], 1 << 16).decode().splitlines() == [f"{number} \\udcff" for number in range(100)]
    assert (counted.dropped, counted.told) == (0, [])


def test_what_an_unread_pipe_cannot_take_is_dropped_and_told_when_it_moves(pipe: tuple[int, int]) -> None:
    """Mutation: without the bound the writer takes all the memory; a blocking write stands for ever."""
    counted = Counted(pipe[1])
    for _ in range(MANY):
        counted.writer.write(LINE)
    assert 0 < counted.dropped < MANY
    read(pipe[0], (MANY - counted.dropped) * len(LINE))
    assert counted.moving.wait(10)
    assert counted.told == [counted.dropped]
    counted.writer.write("again\n")
    assert read(pipe[0], 6) == b"again\n"
    counted.writer.stop()
    assert counted.told == [counted.dropped]


def test_the_end_does_not_wait_for_an_unread_pipe(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FLUSH_S", 0.1)
    counted = Counted(pipe[1])
    for _ in range(MANY):
        counted.writer.write(LINE)
    counted.writer.stop()
    read(pipe[0], (MANY - counted.dropped) * len(LINE))  # the thread ends


@pytest.mark.skipif(sys.platform == "win32", reason="pipes that block")
def test_a_stream_that_another_process_has_made_non_blocking_gets_all_lines(pipe: tuple[int, int]) -> None:
    """As a terminal's or a supervisor's. Fails where a full pipe cuts a line and drops the next ones."""
    os.set_blocking(pipe[1], False)
    counted = Counted(pipe[1])
    for _ in range(200):
        counted.writer.write(LINE)
    time.sleep(0.1)
    assert counted.dropped == 0
    assert read(pipe[0], 200 * len(LINE)) == 200 * LINE.encode()
    counted.writer.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe without a reader")
def test_a_reader_that_is_gone_costs_only_its_lines() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    counted = Counted(writer)
    for _ in range(3):
        counted.writer.write(LINE)
    counted.writer.stop()
    os.close(writer)
    assert counted.dropped == 3
