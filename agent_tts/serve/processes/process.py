"""What each process of a node sets up: its event loop, its limit of open files, its garbage collection."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.serve.fronts import connections, rtc_peers
from agent_tts.serve.telemetry.logs import report_fault
from agent_tts.system import open_files
from agent_tts.system.in_child import settle, share_interpreter

if TYPE_CHECKING:
    from fastapi import FastAPI


@contextmanager
def runner() -> Iterator[asyncio.Runner]:
    """What runs this process's event loop. Threads that wait for a disk are left behind at its end; see `leave`."""
    with asyncio.Runner(loop_factory=event_loop_factory()) as made:
        made.get_loop().set_exception_handler(report_fault)
        try:
            yield made
        finally:
            made.get_loop().set_default_executor(ThreadPoolExecutor(1))  # asyncio waits for the threads of this one


def leave(code: int) -> NoReturn:
    """End this process at once: Python would wait for its threads."""
    logger.remove()  # writes what waits
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def warm_up(app: FastAPI) -> None:
    """Do what would hold the event loop later, once all is imported; `gc.unfreeze` undoes a part of it."""
    app.openapi()  # is kept: made in a thread when it is first asked for, it delays others by up to 0.2 s
    settle()


def raise_limit_of_files(settings: Settings, *, warn: bool = True) -> None:
    """Allow this process the file descriptors that its clients need, or warn that it may not open so many."""
    most = connections(settings), rtc_peers(settings)
    needed, limit = open_files.needed(*most), open_files.allowed()
    open_files.raise_limit(needed)
    if warn and limit < needed:
        logger.warning(
            "{} connections and {} WebRTC peers need {} open files, and this process may open {}: connections give way "
            "before their limit; raise the hard limit (ulimit -Hn, LimitNOFILE)",
            *(*most, needed, limit),
        )


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, except on Windows: it halves the cost of small writes. Other threads leave it the interpreter in time."""
    share_interpreter()
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
