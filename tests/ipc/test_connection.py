"""The front's end of a link, without an engine."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from agent_tts.ipc.connection import LONG_BYTES, WAIT_S, EngineConnection
from agent_tts.ipc.wire import TO_ENGINE, decode, encode
from agent_tts.messages import Append, Audio, Credit, EngineCommand, EngineEvent

FRAMES = LONG_BYTES // 3_840 + 1  # of one long piece


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Connection(EngineConnection):
    def _broken(self, why: str) -> None:
        raise AssertionError(why)


class Ends:
    """A connection, and what has come and gone over it."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.pipe = Pipe()
        self.connection = Connection(60.0, self._take)
        self.connection.open(cast(Any, self.pipe))

    def _take(self, new: list[EngineEvent]) -> None:
        self.events += [event.id for event in new if isinstance(event, Audio)]


def step(first: int, frames: int = FRAMES) -> bytes:
    return b"".join(encode(Audio(number, bytes(3_840))) for number in range(first, first + frames))


async def test_one_long_piece_is_read_in_a_pass_of_the_event_loop() -> None:
    ends = Ends()
    for piece in range(4):  # as libuv gives them: all that there is at once
        ends.connection.feed(step(piece * FRAMES))
    seen = []
    for _ in range(6):
        seen.append(len(ends.events) // FRAMES)
        await asyncio.sleep(0)
    assert seen == [1, 2, 3, 4, 4, 4]
    assert ends.events == list(range(4 * FRAMES))


async def test_short_pieces_keep_their_place_and_wait_for_nothing_else() -> None:
    ends = Ends()
    ends.connection.feed(step(0, 1))
    ends.connection.feed(step(1, 1))
    assert ends.events == [0, 1]
    ends.connection.feed(step(2))
    ends.connection.feed(step(2 + FRAMES, 1))
    assert ends.events == list(range(2 + FRAMES))
    await asyncio.sleep(0)
    assert ends.events == list(range(3 + FRAMES))


async def test_what_waits_at_the_end_is_read_and_nothing_after_a_close() -> None:
    ends = Ends()
    for piece in range(3):
        ends.connection.feed(step(piece * FRAMES))
    ends.connection.read_all()
    assert len(ends.events) == 3 * FRAMES
    ends.connection.feed(step(0))
    ends.connection.close()
    await asyncio.sleep(0)
    assert len(ends.events) == 3 * FRAMES


@pytest.mark.parametrize("command", [Credit(1, 6), Append(1, "later")])
async def test_some_commands_wait_for_others_but_not_for_long(command: EngineCommand) -> None:
    ends = Ends()
    ends.connection.send(command, waits=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not ends.pipe.written
    ends.connection.send(Append(2, "now"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (data,) = ends.pipe.written
    assert decode(bytearray(), data, TO_ENGINE) == [command, Append(2, "now")]
    ends.connection.send(command, waits=True)
    await asyncio.sleep(2 * WAIT_S)
    assert decode(bytearray(), ends.pipe.written[1], TO_ENGINE) == [command]
    ends.connection.send(command, waits=True)
    ends.connection.close()
