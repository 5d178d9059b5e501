"""A lock between the processes of a machine that ends with its holder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LOCK_S = 10.0  # longest wait for another process
_POLL_S = 0.02


@contextmanager
def file_lock(path: Path, wait_s: float = LOCK_S) -> Iterator[IO[bytes]]:
    """Hold a lock on a file of the user's own, which is made if there is none. Not on Windows: a node is one process.

    Raises `BlockingIOError` if another process still has it after `wait_s`, other `OSError` as the disk gives them.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with open(path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        while not _locked(file):
            if time.monotonic() >= deadline:
                raise BlockingIOError(f"another process has locked {path.name}")
            time.sleep(_POLL_S)
        yield file


def _locked(file: IO[bytes]) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
