"""An engine process that several fronts share: each has a link of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent_tts.engine_info import FRAME_BYTES
from agent_tts.errors import EngineLost
from agent_tts.ipc import engine_link
from agent_tts.ipc.engine_link import EngineLink
from agent_tts.ipc.engine_process import EngineProcess
from agent_tts.ipc.links import CANCELS, MAX_BACKLOG_BYTES
from agent_tts.ipc.wire import Setup, encode
from agent_tts.messages import (
    Append,
    Audio,
    Cancel,
    Credit,
    EngineCommand,
    EngineLoad,
    EnginePing,
    EnginePong,
    EngineReady,
    Finished,
    Open,
    Started,
    StopEngine,
)
from agent_tts.options import EngineOptions
from tests.examples import FACTOR
from tests.ipc.listener import WAIT_S, Listener, engine_process, speak, tone_settings
from tests.support import present, until

pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform == "win32", reason="descriptors are passed")]

WINDOW = 1_000  # frames: no credit is needed
QUIET_S = 600.0  # heartbeats that do not interfere
LONG = "word " * 100
NEVER_END = "fault:never_end@0"
WORDS = "twelve words that are spoken by a tone, each of them told apart"


class Front(Listener):
    """A front with one link."""

    def __init__(self, heartbeat_s: float = 5.0) -> None:
        super().__init__()
        self.asked = 0
        self.link = EngineLink(self._ask, heartbeat_s, self.on_events, self.on_lost)

    def _ask(self) -> None:
        self.asked += 1

    async def connect(self, process: EngineProcess) -> None:
        """Get a link from the owner of the engine."""
        await self.link.connect(process.attach(), present(process.greeting))

    @property
    def load(self) -> EngineLoad | None:
        """As last told."""
        return next((event for event in reversed(self.seen) if isinstance(event, EngineLoad)), None)

    async def whole(self, request: int) -> bytes:
        """All audio of a request, when it has ended."""
        await self.until(lambda: self.finished(request) is not None)
        return self.pcm(request)


@asynccontextmanager
async def shared(
    fronts: int = 2, heartbeat_s: float = 5.0, **values: Any
) -> AsyncIterator[tuple[EngineProcess, list[Front]]]:
    """A tone engine that so many fronts share."""
    settings = tone_settings(
        timeouts={"engine_heartbeat_s": heartbeat_s, "queue_s": 60.0},
        limits={"window_frames": WINDOW, "max_frames": 100_000},
        **values,
    )
    async with engine_process(settings) as (process, _):
        each = [Front(heartbeat_s) for _ in range(fronts)]
        try:
            for front in each:
                await front.connect(process)
            yield process, each
        finally:
            for front in each:
                await front.link.close()


@pytest.fixture
def raw() -> Iterator[list[socket.socket]]:
    """Links without a front, closed at the end."""
    sockets: list[socket.socket] = []
    yield sockets
    for sock in sockets:
        sock.close()


async def tell(sock: socket.socket, *commands: EngineCommand) -> None:
    async with asyncio.timeout(WAIT_S):
        await asyncio.get_running_loop().sock_sendall(sock, b"".join(map(encode, commands)))


async def closed(sock: socket.socket) -> bool:
    """Whether the engine closes this link soon. Drops what can be read."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT_S):
        try:
            while await loop.sock_recv(sock, 1 << 20):
                pass
        except ConnectionResetError:
            pass
    return True


# ---------------------------------------------------------------- the same speech


async def test_every_link_hears_what_it_would_hear_alone() -> None:
    """All use the same ids at once. Fails if ids of two links are one in the engine, or if events go astray."""
    async with shared(3) as (process, fronts):
        texts = {number: f"{WORDS} {number}" for number in range(1, 6)}
        for text_no, text in texts.items():
            for no, front in enumerate(fronts):
                speak(front.link, text_no, f"{text} {no}", lead_ms=None, seed=no)
        heard = [[await front.whole(number) for number in texts] for front in fronts]
        alone = Front()
        await alone.connect(process)
        for no, front in enumerate(fronts):
            assert isinstance(front.seen[0], EngineReady)
            assert [event.id for event in front.all(Started)] == list(texts)
            for text_no, text in texts.items():
                speak(alone.link, 10 * no + text_no, f"{text} {no}", seed=no)
                await alone.whole(10 * no + text_no)
        assert heard == [[alone.pcm(10 * no + number) for number in texts] for no in range(len(fronts))]
        await alone.link.close()


async def test_each_link_is_told_the_requests_of_the_others() -> None:
    """A front knows its own. Fails if the last change within `LOAD_S` is not told.

    Pongs of all links have the load, and only the owner's what counts once.
    """
    async with shared(2, heartbeat_s=QUIET_S, slots=3) as (_, [one, other]):
        one.link.send(Open(100, EngineOptions()))
        await one.until(lambda: bool(one.all(Started)))
        for nonce in (100, 101):
            other.link.send(EnginePing(nonce))
        await other.until(lambda: any(pong.nonce == 101 for pong in other.all(EnginePong)))
        last = other.all(EnginePong)[-1]
        assert (last.speaking, last.queued, last.step_ms) == (1, 0, 0.0)
        one.link.send(Cancel(100))
        for number in (1, 2, 3, 4):
            one.link.send(Open(number, EngineOptions()))
        other.link.send(Open(1, EngineOptions()))
        await one.until(lambda: one.load == EngineLoad(3, 2, others=1))
        await other.until(lambda: other.load == EngineLoad(3, 2, others=4))
        for number in (1, 2, 3, 4):
            one.link.send(Cancel(number))
        await one.until(lambda: one.load == EngineLoad(1, 0, others=1))
        await other.until(lambda: other.load == EngineLoad(1, 0, others=0))
        before = 1
        for number in range(5, 15):  # a request of one front takes the place of one of the other in the same moment
            other.link.send(Cancel(before))
            one.link.send(Open(number, EngineOptions()))
            await other.until(lambda: other.load == EngineLoad(1, 0, others=1))
            one.link.send(Cancel(number))
            other.link.send(Open(number, EngineOptions()))
            await other.until(lambda: other.load == EngineLoad(1, 0, others=0))
            before = number


# ---------------------------------------------------------------- links that end


async def test_a_link_that_ends_in_the_middle_of_speech_frees_its_slots_and_places() -> None:
    """Requests of others that wait get the slots. Fails if a link's requests outlive it."""
    async with shared(2, slots=2, queue=3) as (_, [one, other]):
        for number in range(1, 5):
            speak(one.link, number, LONG, instructions=NEVER_END)
        await one.until(lambda: len(one.all(Audio)) > 10)
        speak(other.link, 1, WORDS)
        await asyncio.sleep(0.05)
        assert not other.all(Started)
        await one.link.close()
        await other.until(lambda: other.finished(1) is not None)
        await other.until(lambda: other.load == EngineLoad(0, 0, others=0))
        assert one.losses == []


async def test_hundreds_of_requests_of_one_link_end_with_it(raw: list[socket.socket]) -> None:
    """They are cancelled over several steps."""
    async with shared(1, slots=4 * CANCELS) as (process, [front]):
        raw.append(process.attach())
        for number in range(6 * CANCELS):
            await tell(raw[0], Open(number, EngineOptions()), Append(number, "word "))
        await front.until(lambda: front.load == EngineLoad(4 * CANCELS, 2 * CANCELS, others=6 * CANCELS))
        raw[0].close()
        await front.until(lambda: front.load == EngineLoad(0, 0, others=0))


BROKEN = (
    b"GET / HTTP/1.1\r\n\r\n",
    encode(Setup({})),
    encode(StopEngine()),
    encode(Open(1, EngineOptions())) * 2,
    encode(Open((1 << 32) + 1, EngineOptions())),  # an id of another link
    encode(Cancel(-1)),
)


async def test_a_link_that_breaks_the_protocol_ends_alone(raw: list[socket.socket]) -> None:
    """Speech on another link with the same id is whole."""
    async with shared(1) as (process, [front]):
        speak(front.link, 1, WORDS)
        heard = await front.whole(1)
        for number, data in enumerate(BROKEN, 2):
            speak(front.link, number, WORDS)
            raw.append(process.attach())
            raw[-1].send(data)
            assert await closed(raw[-1])
            assert await front.whole(number) == heard
        assert process.alive
        assert front.losses == []


async def test_a_link_that_does_not_read_loses_its_speech_and_nobody_elses(raw: list[socket.socket]) -> None:
    """It asks for more and more audio. Fails without the bound of the backlog, and where a write blocks."""
    async with shared(1, heartbeat_s=QUIET_S, slots=8) as (process, [front]):
        speak(front.link, 1, WORDS)
        heard = await front.whole(1)
        raw.append(process.attach())
        greedy = range(7)
        assert len(greedy) * WINDOW * FRAME_BYTES < MAX_BACKLOG_BYTES
        options = EngineOptions(lead_ms=None, instructions=NEVER_END)
        for one in greedy:
            await tell(raw[0], Open(one, options), Append(one, LONG))
        await front.until(lambda: front.load == EngineLoad(7, 0, others=7))
        number = 1
        async with asyncio.timeout(WAIT_S):
            while front.load != EngineLoad(0, 0, others=0):
                with contextlib.suppress(OSError):  # it has ended
                    await tell(raw[0], *[Credit(one, 10) for one in greedy])
                number += 1
                speak(front.link, number, WORDS)
                assert await front.whole(number) == heard
        assert await closed(raw[0])
        assert process.alive


async def test_a_reader_that_pauses_loses_no_frame(raw: list[socket.socket]) -> None:
    """What the kernel does not take waits in the engine. Fails if the backlog is not written, or out of order."""
    async with shared(1) as (process, [front]):
        text = WORDS * 10
        speak(front.link, 1, text)
        heard = await front.whole(1)
        slow = Front()
        await slow.link.connect(process.attach(), present(process.greeting))
        transport = present(present(slow.link._link)._transport)
        transport.pause_reading()
        for number in range(1, 17):
            speak(slow.link, number, text)
        await front.until(lambda: front.load == EngineLoad(0, 0, others=0))
        transport.resume_reading()
        assert [await slow.whole(number) for number in range(1, 17)] == [heard] * 16
        await slow.link.close()


async def test_a_link_that_falls_silent_ends(raw: list[socket.socket]) -> None:
    """A stopped front keeps no slots. One that has not begun to speak may take its time: it is starting."""
    async with shared(1, heartbeat_s=0.5) as (process, [front]):
        raw += [process.attach(), process.attach()]
        await tell(raw[0], EnginePing(1), Open(1, EngineOptions()))
        assert await closed(raw[0])
        await front.until(lambda: front.load == EngineLoad(0, 0, others=0))
        await tell(raw[1], EnginePing(7))
        heard = b""
        async with asyncio.timeout(WAIT_S):
            while encode(EnginePong(7, 0, 0, 0.0)) not in heard:
                heard += await asyncio.get_running_loop().sock_recv(raw[1], 1 << 16)
        assert front.losses == []


async def _use(front: Front, rng: random.Random, whole: dict[str, bytes]) -> None:
    """Speak, cancel, wait, and perhaps vanish in the middle of it; what ends is whole."""
    said: dict[int, str] = {}
    for number in rng.sample(range(6), rng.randint(1, 5)):
        said[number] = rng.choice(list(whole))
        speak(front.link, number, said[number], lead_ms=rng.choice([None, 80]))
        await asyncio.sleep(rng.choice([0, 0, 0.01]))
    for number in rng.sample(list(said), rng.randint(0, len(said) // 2)):
        front.link.send(Cancel(number))
    if rng.random() < 0.4:
        await asyncio.sleep(rng.choice([0, 0.005, 0.05]))
        await front.link.close()
    else:
        await front.until(lambda: len(front.all(Finished)) == len(said))
    for number, text in said.items():
        end, pcm = front.finished(number), front.pcm(number)
        if end is not None and end.reason == "end":
            assert pcm == whole[text]
        else:
            assert whole[text].startswith(pcm)
            assert end is None or end.reason == "cancelled"


@pytest.mark.parametrize("seed", range(max(1, round(4 * FACTOR))))
async def test_any_mix_of_links_leaves_nothing(seed: int) -> None:
    """Links come, speak with the same ids, cancel and go in any order, on few slots."""
    rng = random.Random(seed)
    async with shared(1, slots=3, queue=40) as (process, [watch]):
        whole: dict[str, bytes] = {}
        for number, text in enumerate(("one", "one two three", WORDS[:20]), 100):
            speak(watch.link, number, text)
            whole[text] = await watch.whole(number)
        for _ in range(6):
            fronts = [Front() for _ in range(rng.randint(1, 4))]
            for front in fronts:
                await front.connect(process)
            await asyncio.gather(*[_use(front, rng, whole) for front in fronts])
            for front in fronts:
                await front.link.close()
            await watch.until(lambda: watch.load == EngineLoad(0, 0, others=0))
        assert watch.losses == []


# ---------------------------------------------------------------- the engine ends


async def test_a_killed_engine_ends_all_links_and_its_successor_gets_new_ones() -> None:
    async with shared(2) as (process, fronts):
        for front in fronts:
            speak(front.link, 1, instructions=NEVER_END)
            await front.until(lambda front=front: bool(front.all(Audio)))
        first = present(process.pid)
        os.kill(first, signal.SIGKILL)
        for front in fronts:
            await front.until(lambda front=front: front.losses == ["its link ended"])
            assert not front.link.alive
            front.link.send(EnginePing(1))  # dropped
        with pytest.raises(EngineLost):
            process.attach()
        await until(lambda: process.pid != first and process.alive, WAIT_S)
        await until(lambda: all(front.asked for front in fronts))
        for front in fronts:
            await front.connect(process)
            speak(front.link, 2, WORDS)
            assert await front.whole(2)
            assert len(front.all(EngineReady)) == 2


@pytest.mark.real_time
async def test_a_stopped_engine_is_late_and_then_lost() -> None:
    """New streams go elsewhere before it is given up."""
    async with shared(1, heartbeat_s=1.0) as (process, [front]):
        assert not front.link.late
        pid = present(process.pid)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: front.link.late, WAIT_S)
        assert front.link.alive
        os.kill(pid, signal.SIGCONT)
        await until(lambda: not front.link.late, WAIT_S)
        os.kill(pid, signal.SIGSTOP)
        await front.until(lambda: bool(front.losses))
        await until(lambda: process.alive and front.asked > 0, WAIT_S)


# ---------------------------------------------------------------- the front's side


async def test_a_front_asks_again_until_it_gets_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once it has one, or when the engine is given up.

    A second link is closed, because whoever hands them out may answer twice; the speech goes on.
    """
    monkeypatch.setattr(engine_link, "ASK_S", 0.02)
    async with shared(2) as (process, [one, other]):
        speak(one.link, 1, "a few words", lead_ms=300)
        await one.connect(process)
        assert await one.whole(1)
        assert len(one.all(EngineReady)) == 1
        assert one.losses == []
        for front in (one, other):
            present(front.link._link)._transport.abort()  # pyrefly: ignore[missing-attribute]
        await until(lambda: min(one.asked, other.asked) >= 3)
        await one.connect(process)
        other.link.failed.set()
        asked = one.asked, other.asked
        await asyncio.sleep(0.2)
        assert (one.asked, other.asked) == asked
        speak(one.link, 2, WORDS)
        assert await one.whole(2)
