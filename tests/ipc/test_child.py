"""The engine process, tested through its raw pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_tts.ipc.child import EXIT_ENGINE_LOST, MAX_INBOX_BYTES, leave
from agent_tts.ipc.wire import TO_FRONT, Setup, decode, encode
from agent_tts.messages import (
    Append,
    Audio,
    End,
    EngineCommand,
    EngineEvent,
    EnginePing,
    EnginePong,
    EngineReady,
    Open,
    StopEngine,
)
from agent_tts.options import EngineOptions
from tests.ipc.listener import WAIT_S, E, shadow_numpy, tone_settings
from tests.support import present

pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and descriptors")]


class Child:
    """An engine process and the bytes to and from it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stdin, self.stdout, self.stderr = present(process.stdin), present(process.stdout), present(process.stderr)
        self._rest = bytearray()
        # Events that were read and not returned yet.
        self._events: list[EngineEvent] = []

    def send(self, *messages: Setup | EngineCommand) -> None:
        self.stdin.write(b"".join(map(encode, messages)))

    async def next(self, kind: type[E]) -> E:
        """The next event of a kind; drops the events before it."""
        async with asyncio.timeout(WAIT_S):
            while True:
                while self._events:
                    if isinstance(event := self._events.pop(0), kind):
                        return event
                data = await self.stdout.read(65_536)
                assert data, (await self.stderr.read()).decode()
                self._events = decode(self._rest, data, TO_FRONT)

    async def end(self) -> tuple[int, str]:
        """Exit code, and all of stderr."""
        async with asyncio.timeout(WAIT_S):
            said = await self.stderr.read()
            return await self.process.wait(), said.decode()


@asynccontextmanager
async def child(*, parent: int | None = None, setup: bool = True, **environ: str) -> AsyncIterator[Child]:
    """A child whose parent is this process, or `parent`; killed at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "agent_tts.ipc.child", str(parent or os.getpid())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environ},
    )
    found = Child(process)
    try:
        if setup:
            found.send(Setup(tone_settings().model_dump(mode="json", exclude={"auth"})))
        yield found
    finally:
        found.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.communicate()


@asynccontextmanager
async def ready(**environ: Any) -> AsyncIterator[Child]:
    """A child whose engine takes requests."""
    async with child(**environ) as it:
        await it.next(EngineReady)
        yield it


def hang(stream: int = 1) -> tuple[EngineCommand, ...]:
    """Commands after whose first audio a step sleeps for a minute."""
    options = EngineOptions(instructions="fault:hang@1", lead_ms=None)
    return (Open(stream, options), Append(stream, "enough text for some frames"), End(stream))


async def test_it_starts_answers_and_exits_on_command() -> None:
    """The whole life of a healthy engine: exit code 0, stderr is empty. Signals to its process group do not end it.

    Mutation: without SIG_IGN it dies.
    """
    async with child() as it:
        hello = await it.next(EngineReady)
        assert hello.info.engine == "tone"
        for signum in (signal.SIGINT, signal.SIGTERM):
            os.kill(it.process.pid, signum)
        it.send(EnginePing(5))
        pong = await it.next(EnginePong)
        assert pong.nonce == 5
        it.send(StopEngine())
        assert await it.end() == (0, "")


async def test_the_end_of_stdin_ends_it_even_in_a_hung_step() -> None:
    """Mutation: without the reader thread it sleeps on for a minute."""
    async with ready() as it:
        it.send(*hang())
        await it.next(Audio)
        it.stdin.close()
        assert (await it.end())[0] == 0


async def test_the_end_of_stdout_ends_it() -> None:
    async with ready() as it:
        it.process._transport.get_pipe_transport(1).close()  # pyrefly: ignore[missing-attribute]
        await asyncio.sleep(0)  # asyncio closes it in the next tick
        it.send(EnginePing(1))
        assert (await it.end())[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="parent-death signal")
async def test_it_exits_if_its_parent_died_before_it_started() -> None:
    """The parent-death signal covers only deaths after its arming; the pipe is open here. Mutation: no getppid."""
    async with child(parent=1 << 22) as it:
        code, said = await it.end()
        assert (code, said) == (0, "")
        assert await it.stdout.read() == b""


NOISE = """
import importlib, os, subprocess, sys
print("printed by a library")
os.write(1, b"written by a library")
subprocess.run(["echo", "said by a library's child"], check=True)
assert sys.stdin.read() == "", "stdin must be empty for a library"
sys.path.remove(os.path.dirname(__file__))
del sys.modules["numpy"]
sys.modules["numpy"] = importlib.import_module("numpy")
"""


async def test_output_of_libraries_goes_to_stderr(tmp_path: Path) -> None:
    """A print during the import of numpy must not reach the pipe. Mutation: without `take_pipes` it fails to start."""
    async with ready(PYTHONPATH=shadow_numpy(tmp_path, NOISE)) as it:
        it.send(StopEngine())
        code, said = await it.end()
        assert code == 0
        for words in ("printed by a library", "written by a library", "said by a library's child"):
            assert words in said


BAD_STARTS: dict[str, tuple[bytes, str]] = {
    "a command first": (encode(EnginePing(1)), "Setup must be the first message"),
    "junk": (b"GET / HTTP/1.1\r\n\r\n", "WireError: a frame of"),
    "settings that it cannot use": (encode(Setup({"engine": "none"})), "ValidationError"),
    "two setups": (encode(Setup({})) * 2, "Setup must be the first message, and the only one"),
}


@pytest.mark.parametrize(("data", "reason"), BAD_STARTS.values(), ids=BAD_STARTS.keys())
async def test_a_bad_start_ends_it_with_the_reason(data: bytes, reason: str) -> None:
    """Exit code and stderr name the reason."""
    async with child(setup=False) as it:
        it.stdin.write(data)
        code, said = await it.end()
        assert code == EXIT_ENGINE_LOST
        assert reason in said


def test_messages_that_may_quote_the_text_are_withheld(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text must not get into a log. Mutation: printing every message shows the word."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    for error in (RuntimeError("a secret word"), ValueError("a secret word"), KeyError("a secret word")):
        leave(type(error), error, None)
    assert capsys.readouterr().err.splitlines() == ["RuntimeError: a secret word", "ValueError", "KeyError"]
    assert codes == [EXIT_ENGINE_LOST] * 3


async def test_too_many_waiting_commands_end_it() -> None:
    """The inbox of a hung engine is bounded; commands that were taken do not count.

    Mutation: without the bound it takes all of these commands.
    """
    async with ready() as it:
        for nonce in range(2 * MAX_INBOX_BYTES // 500_000):
            it.send(Append(1, "x" * 500_000), EnginePing(nonce))
            await it.next(EnginePong)
        it.send(*hang())
        await it.next(Audio)
        append = Append(1, "x" * 100_000)
        for _ in range(MAX_INBOX_BYTES // 100_000 + 2):
            it.send(append)
        code, said = await it.end()
        assert code == EXIT_ENGINE_LOST
        assert "does not take its commands" in said
