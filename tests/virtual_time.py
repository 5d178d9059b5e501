"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

`install` replaces `time.monotonic` and `time.perf_counter` before the package binds them. The clock jumps whenever an
event loop has nothing to do: no socket is ready, no thread of an executor is at work, the test has no child process,
and a timer is due later. Computing takes its real time. Sockets, encoders and engines are real; only waiting is
skipped.

A jump is right as long as all parties run in this event loop: data that a loopback socket has taken is ready at its
other end at once. Tests that wait for threads of a library's own are marked `real_time`.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# How long the loop waits for a thread or a process before it looks again, in seconds.
LOOK_S = 0.005

_real_monotonic, _real_perf_counter = time.monotonic, time.perf_counter


class _Clock:
    """Seconds that have been skipped, and whether more may be."""

    skipped_s = 0.0
    jumps = False


def monotonic() -> float:
    return _real_monotonic() + _Clock.skipped_s


def perf_counter() -> float:
    return _real_perf_counter() + _Clock.skipped_s


def install() -> None:
    """Put the clock in place of the system's. Must come before the first import of the package."""
    time.monotonic, time.perf_counter = monotonic, perf_counter


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
            return super().select(timeout)
        # Checked before the sockets: a child or its waiting thread that ends in between makes one ready.
        is_busy = has_children() or any(thread.name.startswith("asyncio-waitpid") for thread in threading.enumerate())
        if ready := super().select(0):
            return ready
        if self.in_threads or is_busy:
            return super().select(timeout if not self.in_threads else min(timeout, LOOK_S))
        _Clock.skipped_s += timeout
        return []


class JumpingEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own event loop on a selector that can skip waits."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

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
