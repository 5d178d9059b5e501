"""What a process of the node does before it works: it ends with its parent, and keeps stdout and memory to itself."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """On Linux, have the kernel kill this process when `parent` dies, even while a library holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(0)


def take_stdout() -> int:
    """Keep stdout for this program alone, as the file descriptor returned; prints of libraries go to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def settle() -> None:
    """Exempt all present objects from garbage collection, 0.1 s each time; `gc.unfreeze` undoes it."""
    gc.collect()
    gc.freeze()
