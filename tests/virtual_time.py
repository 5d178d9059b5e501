"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

`install` replaces the clocks of `time` before the package binds them. The clock jumps when an event loop is idle: no
socket is ready, no executor thread works, no child process of the test may work, and the next timer is in the future.
Sockets, encoders and engines are real; only waiting is skipped. Computation takes CPU time of the main thread instead
of wall time, and none in other threads, so limits in seconds hold on a busy machine.

A jump is correct if all parties run in this event loop: loopback data that a socket has accepted is ready at the other
end at once. Tests that wait for a library's own threads are marked `real_time`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, SupportsIndex, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Interval at which the loop checks for a thread or a process, s.
LOOK_S = 0.005

_real_monotonic, _real_sleep = time.monotonic, time.sleep
_epoch = time.time() - time.monotonic()  # noqa: TID251


if sys.platform == "linux":
    _main_thread: int

    def _find_main_thread() -> None:
        global _main_thread
        _main_thread = time.pthread_getcpuclockid(threading.main_thread().ident or 0)

    _find_main_thread()
    os.register_at_fork(after_in_child=_find_main_thread)  # its clock has the number of the process in it

    def _computed() -> float:
        """CPU time of the main thread, s; it does not advance while a busy machine gives the thread no core."""
        return time.clock_gettime(_main_thread)

else:
    _computed = _real_monotonic


class _Clock:
    """The shown time: one of the two clocks below plus an offset."""

    # The offset contains the skipped time, and keeps the shown time continuous when the other clock takes over.
    reads: tuple[Callable[[], float], float] = (_real_monotonic, 0.0)
    # Whether event loops may skip their waits.
    jumps = False
    # The clock of an event loop that may skip its waits.
    computed: Callable[[], float] = _computed


def _read(clock: Callable[[], float], skip_s: float = 0.0) -> None:
    """Use this clock from now on; the shown time continues from its current value plus `skip_s`."""
    _Clock.reads = (clock, monotonic() + skip_s - clock())


def monotonic() -> float:
    clock, offset_s = _Clock.reads
    return clock() + offset_s


def monotonic_ns() -> int:
    return round(monotonic() * 1e9)


def wall_clock() -> float:
    """`time.time`, with which libraries measure."""
    return _epoch + monotonic()


def sleep(seconds: float | SupportsIndex) -> None:
    """`time.sleep`: counts although it takes no CPU time."""
    with _clock(_real_monotonic):
        _real_sleep(seconds)


@contextmanager
def _clock(clock: Callable[[], float]) -> Iterator[None]:
    """Use this clock in the block, if the main thread runs it."""
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
    """Replace the system's clocks. Must run before the first import of the package."""
    time.monotonic = time.perf_counter = monotonic
    time.monotonic_ns = time.perf_counter_ns = monotonic_ns
    time.time, time.sleep = wall_clock, sleep  # noqa: TID251
    from anyio import to_thread

    to_thread.run_sync = _counted(to_thread.run_sync)


@contextmanager
def free_computing() -> Iterator[None]:
    """In an event loop that runs in the block, computation takes no time: timers are exact where the clock jumps."""
    before, _Clock.computed = _Clock.computed, lambda: 0.0
    try:
        yield
    finally:
        _Clock.computed = before


@contextmanager
def jumping(enabled: bool) -> Iterator[None]:
    """Whether event loops skip their waits in the block. If not, the clock is the one that other processes read."""
    before = _Clock.reads
    if not enabled:
        _Clock.reads = (_real_monotonic, 0.0)
    _Clock.jumps = enabled
    try:
        yield
    finally:
        _Clock.jumps = False
        if not enabled:
            _Clock.reads = before


def is_childless() -> bool:
    """Whether this process has no child process, not even a dead one. To read that in /proc takes 40 times as long."""
    if sys.platform != "linux":
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def has_children() -> bool:
    """Whether this process has child processes that may work, or dead ones that were not waited for."""
    if is_childless():
        return False
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has just ended
            if not all(map(_waits_for_a_clause, read(f"/proc/self/task/{thread}/children").decode().split())):
                return True
    return False


def read(path: str) -> bytes:
    """A file of /proc. `Path` takes ten times as long, and an event loop that waits reads one for each thread."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _waits_for_a_clause(pid: str) -> bool:
    """Whether it is a process of the espeak engine that sleeps: it has no clause, or its answer is in the pipe.

    A process that was given work does not sleep, even if a busy machine gives it no core.
    """
    try:
        command, stat = (read(f"/proc/{pid}/{name}") for name in ("cmdline", "stat"))
    except OSError:  # it has just been waited for, by another thread
        return False
    return b"/espeak/worker.py" in command and stat.rpartition(b")")[2].split()[0] == b"S"


def _threads_compute() -> bool:
    """Whether a thread but this one runs, or would on an idle machine. One that waits for something does not."""
    me = str(threading.get_native_id())
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            if thread != me and read(f"/proc/self/task/{thread}/stat").rpartition(b") ")[2][:1] in b"RD":
                return True
    return False


class _Selector(selectors.DefaultSelector):
    """Skips a wait in which nothing can happen."""

    def __init__(self) -> None:
        super().__init__()
        # Number of executor calls that have not returned.
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not _Clock.jumps or timeout is None:
            with _clock(_real_monotonic):
                return super().select(timeout)
        if timeout <= 0:
            return super().select(timeout)
        # Checked before the sockets: a child or its waiting thread that ends in between makes a socket ready.
        is_busy = has_children() or any(thread.name.startswith("asyncio-waitpid") for thread in threading.enumerate())
        if ready := super().select(0):
            return ready
        if self.in_threads and _threads_compute():
            return super().select(LOOK_S)  # which takes no time, either
        if self.in_threads or is_busy:
            with _clock(_real_monotonic):
                return super().select(timeout if not self.in_threads else min(timeout, LOOK_S))
        if sys.platform == "linux":
            os.sched_yield()  # on a busy machine a thread of the kernel hands loopback data over
        if ready := super().select(0):
            return ready
        _read(_Clock.reads[0], timeout)
        return []


class JumpingEventLoop(asyncio.SelectorEventLoop):
    """asyncio's own event loop on a selector that can skip waits."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def run_forever(self) -> None:
        with _clock(_Clock.computed if _Clock.jumps else _real_monotonic):
            super().run_forever()

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        self._jumping.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self._jumping.in_threads -= 1


def _counted(run_sync: Callable[..., Awaitable[Any]]) -> Any:
    """`anyio.to_thread.run_sync`, by which files are served: an event loop waits for its threads as for its own."""

    async def run(*args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, JumpingEventLoop):
            return await run_sync(*args, **options)
        jumping = loop._jumping
        jumping.in_threads += 1
        try:
            return await run_sync(*args, **options)
        finally:
            jumping.in_threads -= 1

    return run


class Policy(asyncio.DefaultEventLoopPolicy):
    """Makes event loops that can jump."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return JumpingEventLoop()
