"""The reserve of file descriptors for child processes, in a process of its own with few of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform == "win32", reason="no limit of descriptors")]

PROGRAM = """
import asyncio, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
from agent_tts.system import open_files
from agent_tts.system.processes import run_module

open_files.raise_limit(1_000)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128 - open_files.FOR_CHILDREN, 128)
assert open_files.room() == (128 - open_files.FOR_CHILDREN) // 2

def take_all() -> list[int]:
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return taken

def count() -> int:
    with open_files.for_child():
        return len(os.listdir("/dev/fd"))

async def main():
    run = lambda: run_module("this", data=b"", output_bytes=10_000, timeout_s=20)
    connections = take_all()
    for _ in range(3):
        assert b"Beautiful" in (await run()).output
    before = count()
    with open_files.for_child():
        reserve = take_all()
    for _ in range(3):
        try:
            await run()
        except OSError as error:
            assert str(error) == "[Errno 24] Too many open files: raise the hard limit (ulimit -Hn, LimitNOFILE)", error
        else:
            raise AssertionError("there was no descriptor left")
    for fd in reserve:
        os.close(fd)
    assert b"Beautiful" in (await run()).output
    assert count() == before
    for fd in connections:
        os.close(fd)

import uvloop
uvloop.run(main())
"""


def test_children_are_spawned_when_connections_have_taken_every_other_descriptor() -> None:
    """Without the probe uvloop says "Unknown error -1", and loses the descriptors that it could open."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
