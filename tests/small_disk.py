"""A file system of 64 KiB, where the test may mount one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEEDS_ROOT = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system")


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount it on `folder` for the block; skips the test in a container that forbids it."""
    folder.mkdir(exist_ok=True)
    mount = ("mount", "-t", "tmpfs", "-o", "size=64k", "agent_tts", str(folder))
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("not allowed to mount")
    try:
        yield
    finally:
        subprocess.run(("umount", str(folder)), check=True)
