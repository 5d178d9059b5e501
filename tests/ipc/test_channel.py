"""The channel between the supervisor and a front: messages, questions, descriptors, and the end of one side."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from agent_tts.errors import AtCapacity, Internal, RateLimited, SpeechError
from agent_tts.ipc import channel as module
from agent_tts.ipc.channel import Channel, NoAnswer
from agent_tts.ipc.front_messages import Question
from agent_tts.ipc.wire import MAX_LENGTH
from agent_tts.system import open_files

pytestmark = [pytest.mark.node, pytest.mark.real_time]

uvloop = pytest.importorskip("uvloop")

SOON_S = 5.0


@dataclass(frozen=True, slots=True)
class Said:
    text: str


@dataclass(frozen=True, slots=True)
class Add(Question[int]):
    one: int
    other: int


@dataclass(frozen=True, slots=True)
class Known(Question[Said | None]):
    name: str


@dataclass(frozen=True, slots=True)
class Take(Question[str]):
    """Comes with a descriptor."""


MESSAGES = Said | Add | Known | Take


def on_both_loops(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Run a test on asyncio's own loop and on uvloop, which watch sockets in different ways."""

    @pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    @functools.wraps(test)
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: object) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(**fixtures))

    has = inspect.signature(test)
    loop = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = has.replace(parameters=[*has.parameters.values(), loop])  # pyrefly: ignore[missing-attribute]
    del run.__wrapped__
    return cast(Callable[..., None], run)


@asynccontextmanager
async def both(lost: Callable[[str], None] = lambda why: None) -> AsyncIterator[tuple[Channel, Channel]]:
    """Two ends of a channel; `lost` is told of the first one's loss."""
    one, other = socket.socketpair()
    asking, answering = Channel(one, MESSAGES, lost), Channel(other, MESSAGES, lambda why: None)
    try:
        yield asking, answering
    finally:
        await asking.close()
        await answering.close()


@on_both_loops
async def test_questions_are_answered_and_order_is_kept() -> None:
    async with both() as (asking, answering):
        said: list[Said] = []
        answering.handle(Said, said.append)
        answering.handle(Add, lambda add: add.one + add.other)
        answering.handle(Known, lambda known: Said(known.name) if known.name else None)
        for number in range(100):
            asking.tell(Said(f"{number} \0 ü"))
        assert await asking.ask(Add(40, 2), SOON_S) == 42
        assert said == [Said(f"{number} \0 ü") for number in range(100)]
        assert await asking.ask(Known("a"), SOON_S) == Said("a")
        assert await asking.ask(Known(""), SOON_S) is None


@on_both_loops
async def test_a_refusal_is_the_same_error_and_a_fault_is_internal() -> None:
    async with both() as (asking, answering):

        async def refuse(add: Add) -> int:
            await asyncio.sleep(0)
            raise RateLimited("slowly", retry_after_ms=7)

        answering.handle(Add, refuse)
        answering.handle(Known, lambda known: 1 // 0)  # pyrefly: ignore[division-by-zero]
        with pytest.raises(RateLimited, match="slowly") as refusal:
            await asking.ask(Add(1, 2), SOON_S)
        assert refusal.value.retry_after_ms == 7
        with pytest.raises(Internal):
            await asking.ask(Known("x"), SOON_S)


@on_both_loops
async def test_a_late_answer_is_an_error_and_harms_no_later_question() -> None:
    async with both() as (asking, answering):
        free = asyncio.Event()

        async def add(question: Add) -> int:
            if question.one == 0:
                await free.wait()
            return question.one + question.other

        answering.handle(Add, add)
        with pytest.raises(NoAnswer):
            await asking.ask(Add(0, 1), 0.01)
        free.set()
        assert await asking.ask(Add(1, 1), SOON_S) == 2


@on_both_loops
async def test_the_end_of_one_side_is_told_once_and_fails_open_questions() -> None:
    reasons: list[str] = []
    async with both(reasons.append) as (asking, answering):
        held = asyncio.Event()

        async def hold(question: Add) -> int:
            await held.wait()
            return 0

        answering.handle(Add, hold)
        question = asyncio.create_task(asking.ask(Add(1, 1), SOON_S))
        await asyncio.sleep(0.01)
        await answering.close()
        with pytest.raises(NoAnswer):
            await question
        with pytest.raises(NoAnswer):
            await asking.ask(Add(1, 1), SOON_S)
        asking.tell(Said("to nobody"))
        await asyncio.sleep(0)
    assert len(reasons) == 1


@on_both_loops
async def test_descriptors_go_with_their_message() -> None:
    async with both() as (asking, answering):
        taken: list[str] = []
        pieces: list[str] = []

        def take(_: Take, fd: int) -> str:
            with os.fdopen(fd, "rb") as file:
                taken.append(file.read().decode())
            return taken[-1]

        answering.handle(Take, take, fds=1)
        answering.handle(Said, lambda said: pieces.append(said.text))
        answers = []
        for number in range(20):
            read, write = os.pipe()
            os.write(write, str(number).encode())
            os.close(write)
            asking.tell(Said("x" * 50_000))  # reads end in the middle of a message
            answers.append(asyncio.create_task(asking.ask(Take(), SOON_S, [read])))
            await asyncio.sleep(0)
        assert await asyncio.gather(*answers) == [str(number) for number in range(20)] == taken
        assert len(pieces) == 20


@on_both_loops
async def test_descriptors_without_room_are_refused_and_later_ones_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_full", None)  # of a node that another test has run in this process
    async with both() as (asking, answering):

        def take(_: Take, fd: int) -> str:
            os.close(fd)
            return "taken"

        answering.handle(Take, take, fds=1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        read, write = os.pipe()
        os.close(write)
        again = os.dup(read)
        highest = os.dup(read)
        os.close(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        try:
            fillers = []
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(read))
            keep = fillers.pop() if fillers else None
            if keep is not None:
                os.close(keep)
            question = asyncio.create_task(asking.ask(Take(), SOON_S, [again]))
            await asyncio.sleep(0)
            fillers.append(os.dup(read))  # what the sending side has closed is taken
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(read))
            with pytest.raises(AtCapacity, match="descriptor"):
                await question
            for fd in fillers:
                os.close(fd)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await asking.ask(Take(), SOON_S, [read]) == "taken"


@on_both_loops
async def test_unexpected_descriptors_end_the_channel_and_are_closed() -> None:
    reasons: list[str] = []
    async with both(reasons.append) as (lost, sending):
        lost.handle(Said, lambda said: None)
        sending.tell(Said("with a gift"), [os.open(os.devnull, os.O_RDONLY)])
        while not reasons:
            await asyncio.sleep(0.001)
    assert "Said with 1 descriptors" in reasons[0]


@on_both_loops
async def test_a_side_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1 << 20)
    one, other = socket.socketpair()
    reasons: list[str] = []
    channel = Channel(one, MESSAGES, reasons.append)
    with other:
        fd = os.open(os.devnull, os.O_RDONLY)
        for _ in range(8):
            channel.tell(Said("x" * 500_000))
        channel.tell(Said("late"), [fd])
        await asyncio.sleep(0.01)
        assert reasons == ["it does not read its messages"]
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
        await channel.close()


@on_both_loops
async def test_open_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OPEN", 2)
    async with both() as (asking, answering):
        free = asyncio.Event()

        async def hold(question: Add) -> int:
            await free.wait()
            return 0

        answering.handle(Add, hold)
        two = [asyncio.create_task(asking.ask(Add(1, 1), SOON_S)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(SpeechError):
            await asking.ask(Add(1, 1), SOON_S)
        free.set()
        assert await asyncio.gather(*two) == [0, 0]


@on_both_loops
async def test_a_long_message_comes_and_one_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1 000 keys a page of metrics is longer than any message of an engine. The channel stands."""
    monkeypatch.setattr(module, "MAX_BYTES", 2 * MAX_LENGTH)
    async with both() as (asking, answering):
        said: list[Said] = []
        answering.handle(Said, said.append)
        answering.handle(Known, lambda known: Said(known.name))
        answering.handle(Add, lambda add: 10**add.one)

        def take(_: Take, fd: int) -> str:
            os.close(fd)
            return "x" * 2 * MAX_LENGTH

        answering.handle(Take, take, fds=1)
        for length in (0, 1_000, MAX_LENGTH, 2 * MAX_LENGTH - 50):
            asking.tell(Said("y" * length))
            assert await asking.ask(Known("z" * length), SOON_S) == Said("z" * length)
        assert [len(one.text) for one in said] == [0, 1_000, MAX_LENGTH, 2 * MAX_LENGTH - 50]
        with pytest.raises(Internal):
            await asking.ask(Take(), SOON_S, [os.open(os.devnull, os.O_RDONLY)])
        with pytest.raises(Internal, match="Known of 209"):
            await asking.ask(Known("z" * 2 * MAX_LENGTH), SOON_S)
        assert await asking.ask(Add(2, 0), SOON_S) == 100
        assert not asking.closed
        assert not answering.closed


@on_both_loops
async def test_the_loss_is_told_before_those_who_ask_go_on() -> None:
    """Who counts answers that do not come would otherwise take a dead front for a hung one, and wait for its stacks."""
    order = list[str]()
    async with both(lambda why: order.append("lost")) as (asking, answering):
        answering.handle(Add, lambda question: asyncio.sleep(SOON_S))

        async def ask() -> None:
            for _ in range(2):
                with pytest.raises(NoAnswer):
                    await asking.ask(Add(1, 2), SOON_S)
            order.append("asked")

        task = asyncio.create_task(ask())
        await asyncio.sleep(0.05)
        await answering.close()
        await task
    assert order == ["lost", "asked"]


@pytest.mark.parametrize(
    "data",
    [
        (module.MAX_BYTES + 1).to_bytes(4, "little") + b"\x01",
        b"\xff" * 64,
        b"\x09\x00\x00\x00\x01\x00\x00\x00\x00\x00\xff{}",
        b"\x05\0\0\0\x03abcd",
    ],
)
@on_both_loops
async def test_garbage_ends_the_channel(data: bytes) -> None:
    one, other = socket.socketpair()
    lost = asyncio.get_running_loop().create_future()
    channel = Channel(one, MESSAGES, lost.set_result)
    with other:
        other.send(data)
        assert "protocol" in await asyncio.wait_for(lost, SOON_S)
        await channel.close()
