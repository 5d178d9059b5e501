"""What a process of the node does before it works: it ends with its parent, and sets up signals, stdout and memory."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1

# Beginnings of lines of an engine's stderr: levels, at which its owner logs them, and of settings that it cannot use.
FAULTS = ("WARNING", "ERROR")
REFUSAL = "SettingsError: "

# Python's are 700, 10, 10. A full collection stops a front for 0.1 ms a connection, and an engine for 10 us a request;
# it is hardly ever needed, because what clients leave behind is not in cycles.
GC_THRESHOLDS = (700, 10, 200)


def die_with(parent: int) -> None:
    """On Linux, have the kernel kill this process when `parent` dies, even while a library holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(0)


def arrange_signals() -> None:
    """Ignore SIGINT, SIGTERM, SIGHUP and SIGUSR2; print all stacks on a crash and, except on Windows, on SIGUSR1.

    The owner ends this process. Ctrl-C and a service manager's SIGTERM may reach every process of the node, and open
    requests have to finish.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, all_threads=True)


def take_stdout() -> int:
    """Keep stdout for this program alone, as the file descriptor returned; prints of libraries go to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in the block: imports, whose objects stay, take a fifth less time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def share_interpreter() -> None:
    """Let a thread that waits for the interpreter have it after 0.5 ms: Python's 5 ms are a fifth of an engine's step,
    and a listener may notice some of them in a row."""
    sys.setswitchinterval(0.000_5)


def settle() -> None:
    """Exempt all present objects from garbage collection, 0.1 s each time, and collect the others seldom.

    `gc.unfreeze` undoes the former.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
