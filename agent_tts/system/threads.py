"""Work in threads: what computes, and what may hang, as a disk, a name server and a download do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

# Held by a thread while it computes for milliseconds, never while it waits for anything else. Threads that compute at
# the same time take the interpreter from the event loop one after the other, whenever a library gives it away: with one
# of them an encoder of MP3 takes three times as long, with two six times.
computing = threading.Lock()


def in_daemon(work: Callable[[], T], name: str) -> Future[T]:
    """What `work` returns or raises, in a thread of its own that no exit of the process waits for.

    To cancel a wait for it leaves the work alone.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        with suppress(InvalidStateError):  # whoever waited was told something else
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the edge of a thread
                done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done
