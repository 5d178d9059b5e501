from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.speech.audio.packet_clock import (
    GRIDS,
    PACKET_MS,
    PACKET_S,
    PACKET_TICKS,
    PEERS,
    RESYNC_S,
    Pacer,
    PacketClock,
)
from tests import virtual_time
from tests.examples import examples


@pytest.fixture(autouse=True)
def free_computing() -> Iterator[None]:
    """When a packet leaves is up to the clock's timers alone, on a busy machine too."""
    with virtual_time.free_computing():
        yield


class Listener:
    """A peer of a clock: what left, and when."""

    def __init__(self, clock: PacketClock) -> None:
        self._clock = clock
        self.pts: list[int] = []
        self.left_at: list[float] = []
        self.late: list[float] = []
        self.leave = clock.join(self.send)

    def send(self, pts: int, due: float) -> None:
        now = self._clock.clock()
        self.pts.append(pts)
        self.left_at.append(now)
        self.late.append(now - due)


class Stalling:
    """The loop's clock, and what it has stood."""

    def __init__(self) -> None:
        self.stood_s = 0.0
        self._now = asyncio.get_running_loop().time

    def __call__(self) -> float:
        return self._now() + self.stood_s


async def packets(listener: Listener, count: int) -> None:
    """Wait for so many more."""
    goal = len(listener.pts) + count
    while len(listener.pts) < goal:
        await asyncio.sleep(PACKET_S / 4)


@examples(200)
@given(st.lists(st.floats(0, 2), max_size=200))
def test_pacer_keeps_its_grid_however_late_it_is_called(delays: list[float]) -> None:
    """For any delay: no packet before its time, no burst, and RTP time stays real time."""
    now, pacer, last = 0.0, Pacer(0.0), (-1.0, -PACKET_TICKS)
    for delay in delays:
        now += pacer.wait_s(now) + delay
        pts, due = pacer.leave(now)
        assert pts % PACKET_TICKS == 0
        assert pts > last[1]
        assert due <= now + 1e-9
        assert now - last[0] >= PACKET_S / 2 - 1e-9
        assert pts / 48_000 <= now + 1e-6, "a packet left before its time"
        assert now - pts / 48_000 <= RESYNC_S + 1e-6, "RTP time fell behind real time"
        last = (now, pts)


async def test_packets_leave_every_20_ms() -> None:
    listener = Listener(PacketClock())
    await packets(listener, 500)
    listener.leave()
    assert np.diff(listener.left_at) == pytest.approx(PACKET_S, abs=2e-3)
    assert listener.left_at[-1] - listener.left_at[0] == pytest.approx(499 * PACKET_S, abs=2e-3), "the grid drifts"
    assert set(np.diff(listener.pts)) == {PACKET_TICKS}
    assert max(listener.late) < 2e-3


async def stalled(before: int, stood_s: float, after: int) -> Listener:
    clock = Stalling()
    listener = Listener(PacketClock(clock))
    await packets(listener, before)
    clock.stood_s = stood_s
    await packets(listener, after)
    listener.leave()
    return listener


async def test_a_stall_of_500_ms_loses_no_packet_and_leaves_no_delay() -> None:
    listener = await stalled(50, 0.5, 60)
    assert listener.late[50] == pytest.approx(0.5, abs=2e-3)
    assert max(listener.late[51:]) <= PACKET_S, "packets stay late"
    assert listener.pts[50] - listener.pts[49] in (25 * PACKET_TICKS, 26 * PACKET_TICKS), "RTP time lacks the pause"
    assert min(np.diff(listener.left_at)) >= PACKET_S / 2 - 2e-3, "a burst"


async def test_a_stall_of_150_ms_is_caught_up_at_double_speed() -> None:
    listener = await stalled(10, 0.15, 40)
    assert set(np.diff(listener.pts)) == {PACKET_TICKS}
    assert min(np.diff(listener.left_at)) == pytest.approx(PACKET_S / 2, abs=2e-3)
    assert max(listener.late[26:]) < 2e-3


async def test_the_wall_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that jumps by an hour changes nothing."""
    steps = iter(range(10**9))
    monkeypatch.setattr("time.time", lambda: 1.7e9 + (-1) ** next(steps) * 3_600)
    listener = Listener(PacketClock())
    await packets(listener, 26)
    listener.leave()
    assert listener.left_at[-1] - listener.left_at[0] == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize(("count", "grids"), [(1, 1), (PEERS, 1), (PEERS + 1, 2), (GRIDS * PEERS + 10, GRIDS)])
async def test_peers_share_few_timers_and_do_not_leave_all_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int, grids: int
) -> None:
    loop, timers = asyncio.get_running_loop(), 0
    call_later = loop.call_later

    def counted(delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        nonlocal timers
        timers += callback.__name__ == "_leave"
        return call_later(delay, callback, *args)

    clock = PacketClock()
    listeners = [Listener(clock) for _ in range(count)]
    await packets(listeners[0], 2)
    monkeypatch.setattr(loop, "call_later", counted)
    await packets(listeners[0], 50)
    assert timers <= 52 * grids
    phases = [round(listener.left_at[-1] % PACKET_S * 1_000) % PACKET_MS for listener in listeners]
    assert len(set(phases)) == grids
    assert max(map(phases.count, phases)) <= max(PEERS, count / grids)
    for listener in listeners:
        listener.leave()


async def test_a_peer_that_comes_later_gets_its_first_packet_within_20_ms() -> None:
    clock = PacketClock()
    others = [Listener(clock) for _ in range(3)]
    await asyncio.sleep(0.107)
    asked_at = asyncio.get_running_loop().time()
    last = Listener(clock)
    await packets(last, 1)
    assert last.left_at[0] - asked_at <= PACKET_S + 2e-3
    for listener in (*others, last):
        listener.leave()


async def test_nothing_runs_without_peers() -> None:
    """The last one that leaves stops the timer, also from its own turn; leaving is idempotent."""
    clock = PacketClock()
    listener, seen = Listener(clock), 0

    def leave_at_once(pts: int, due: float) -> None:
        nonlocal seen
        seen += 1
        leave()

    leave = clock.join(leave_at_once)
    await packets(listener, 3)
    assert seen == 1
    for _ in range(2):
        listener.leave()
        leave()
    count = len(listener.pts)
    await asyncio.sleep(1)
    assert len(listener.pts) == count
    assert all(grid._timer is None for grid in clock._grids)
