"""What processes do before they go to work."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """On Linux: have the kernel kill us when `parent` dies, even while a library holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(0)


def take_stdout() -> int:
    """Keep stdout for ourselves; whoever else prints gets stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def settle() -> None:
    """What is there by now stays: the collector need not look at it again, which takes a tenth of a second each time.

    Undone by `gc.unfreeze`, for libraries that count what is left at the end.
    """
    gc.collect()
    gc.freeze()
