"""`agent-tts` as a real process, and in this one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from unittest import mock

from agent_tts.cli import main

AGENT_TTS = (sys.executable, "-m", "agent_tts")
PATIENCE_S = 60.0


def environment(**variables: str) -> dict[str, str]:
    """Ours without our settings, plus `variables`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AGENT_TTS_")} | variables


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start it, with pipes to all sides. Whoever starts it has to wait for it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    return subprocess.Popen([*AGENT_TTS, *arguments], **{**pipes, **options})


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end, without input."""
    defaults = {"stdin": subprocess.DEVNULL, "env": environment(), "timeout": PATIENCE_S}
    return subprocess.run([*AGENT_TTS, *arguments], capture_output=True, check=False, **{**defaults, **options})


def run_here(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end in this process, without input: another process takes a second of a core to start.

    The descriptors 0, 1 and 2 are files meanwhile.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        with (
            mock.patch.dict(os.environ, environment() if env is None else env, clear=True),
            mock.patch.object(sys, "argv", ["agent-tts", *arguments]),
            _standard_files(nothing, out, err),
        ):
            try:
                main()
                code = 0
            except SystemExit as left:
                code = left.code if isinstance(left.code, int) else int(left.code is not None)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


@contextmanager
def _standard_files(*files: IO[bytes]) -> Iterator[None]:
    """Standard input, output and errors are these files."""
    names = ("stdin", "stdout", "stderr")
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as after:
        for fd, file in enumerate(files):
            before = os.dup(fd)
            after.callback(os.close, before)
            after.callback(os.dup2, before, fd)
            os.dup2(file.fileno(), fd)
        for fd, name in enumerate(names):
            stream = after.enter_context(open(fd, "w" if fd else "r", closefd=False))
            after.enter_context(mock.patch.object(sys, name, stream))
        yield


def measure(tool: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run one of `tests.measure` to its end."""
    defaults = {"stdin": subprocess.DEVNULL, "env": environment(), "timeout": PATIENCE_S}
    program = (sys.executable, "-m", f"tests.measure.{tool}", *arguments)
    return subprocess.run(program, capture_output=True, check=False, **{**defaults, **options})


def children_of(pid: int) -> list[int]:
    """Processes that it has started and that have not ended."""
    found: list[int] = []
    with suppress(FileNotFoundError):  # the process has just ended
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has just ended
                found += map(int, task.read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is not a zombie."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]
    except OSError:
        return False
