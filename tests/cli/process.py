"""Runs `agent-tts` in its own process, or in this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from typer import testing
from typer.testing import CliRunner

from agent_tts.cli.app import app
from agent_tts.system.processes import started

AGENT_TTS = (sys.executable, "-m", "agent_tts")
PATIENCE_S = 200.0  # of a machine with other loads; a test has 300


def environment(**variables: str) -> dict[str, str]:
    """The environment without AGENT_TTS_* variables but the number of fronts, plus `variables`."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AGENT_TTS_") or name == "AGENT_TTS_FRONTS"
    } | variables


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `agent-tts` with pipes for stdin, stdout and stderr. The caller waits for it."""
    pipes = dict[str, Any](stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    return subprocess.Popen([*AGENT_TTS, *arguments], **{**pipes, **options})


@contextmanager
def killed_after(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """It does not outlive the block, nor do its pipes."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run `agent-tts` to its end, without input."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    defaults: dict[str, Any] = {**pipes, "env": environment(), "timeout": PATIENCE_S, "check": False}
    return subprocess.run([*AGENT_TTS, *arguments], **{**defaults, **options})


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    return started(pid) is not None


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def invoke(*arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command in this process, without input. Errors that it does not report are raised."""
    inherited: dict[str, str | None] = {name: None for name in os.environ if name.startswith("AGENT_TTS_")}
    done = CliRunner().invoke(app, list(arguments), env=inherited | variables, catch_exceptions=False)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout_bytes, done.stderr_bytes)


def answering(answer: bytes, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The same on a terminal, on which somebody types `answer`."""
    with patch.object(testing, "make_input_stream", lambda *_: Terminal(answer)):
        return invoke(*arguments, **variables)
