"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

`install` replaces the clocks of `time` before the package binds them. The clock jumps whenever an event loop has
nothing to do: no socket is ready, no thread of an executor is at work, the test has no child process, and a timer is
due later. Sockets, encoders and engines are real; only waiting is skipped. Computing takes its real time, without the
time in which a busy machine gives the event loop's thread no core: limits in seconds hold under any load.

A jump is right as long as all parties run in this event loop: data that a loopback socket has taken is ready at its
other end at once. Tests that wait for threads of a library's own are marked `real_time`.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# How long the loop waits for a thread or a process before it looks again, in seconds.
LOOK_S = 0.005

_real_monotonic, _real_sleep = time.monotonic, time.sleep
_epoch = time.time() - time.monotonic()  # noqa: TID251


if sys.platform == "linux":
    _main_thread = time.pthread_getcpuclockid(threading.main_thread().ident or 0)

    def _computed() -> float:
        """Seconds for which the main thread has computed. They stand while a busy machine gives it no core."""
        return time.clock_gettime(_main_thread)

else:
    _computed = _real_monotonic


class _Clock:
    """What the clock shows: one of the two clocks below, and an offset to it."""

    # The offset holds what has been skipped, and keeps the shown time in place when the other clock takes over.
    reads: tuple[Callable[[], float], float] = (_real_monotonic, 0.0)
    # Whether event loops may skip their waits.
    jumps = False


def _read(clock: Callable[[], float], skip_s: float = 0.0) -> None:
    """Go on with this clock from the time that is shown, plus `skip_s`."""
    _Clock.reads = (clock, monotonic() + skip_s - clock())


def monotonic() -> float:
    clock, offset_s = _Clock.reads
    return clock() + offset_s


def monotonic_ns() -> int:
    return round(monotonic() * 1e9)


def wall_clock() -> float:
    """`time.time`: libraries measure with it."""
    return _epoch + monotonic()


def sleep(seconds: float | SupportsIndex) -> None:
    """`time.sleep`: it counts although it computes nothing."""
    with _clock(_real_monotonic):
        _real_sleep(seconds)


@contextmanager
def _clock(clock: Callable[[], float]) -> Iterator[None]:
    """Go by this clock in the block, if it is the main thread that runs it."""
    before, _ = _Clock.reads
    if clock is before or threading.current_thread() is not threading.main_thread():
        yield
        return
    _read(clock)
    try:
        yield
    finally:
        _read(before)


def install() -> None:
    """Put the clock in place of the system's. Must come before the first import of the package."""
    time.monotonic = time.perf_counter = monotonic
    time.monotonic_ns = time.perf_counter_ns = monotonic_ns
    time.time, time.sleep = wall_clock, sleep  # noqa: TID251


def jump(enabled: bool) -> None:
    """Let event loops skip their waits from now on, or not any more."""
    _Clock.jumps = enabled


def has_children() -> bool:
    """Whether this process has child processes, dead ones that nobody has waited for included."""
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            if children.read_bytes():
                return True
        except OSError:  # the thread has just ended
            continue
    return False


class _Selector(selectors.DefaultSelector):
    """Skips a wait in which nothing can happen."""

    def __init__(self) -> None:
        super().__init__()
        # Calls in threads of executors that have not returned.
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not _Clock.jumps or timeout is None or timeout <= 0:
            with _clock(_real_monotonic):
                return super().select(timeout)
        # Checked before the sockets: a child or its waiting thread that ends in between makes one ready.
        is_busy = has_children() or any(thread.name.startswith("asyncio-waitpid") for thread in threading.enumerate())
        if ready := super().select(0):
            return ready
        if self.in_threads or is_busy:
            with _clock(_real_monotonic):
                return super().select(timeout if not self.in_threads else min(timeout, LOOK_S))
        _read(_Clock.reads[0], timeout)
        return []


class JumpingEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own event loop on a selector that can skip waits."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def run_forever(self) -> None:
        with _clock(_computed if _Clock.jumps else _real_monotonic):
            super().run_forever()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        self._jumping.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self._jumping.in_threads -= 1


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes event loops that can jump."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return JumpingEventLoop()
