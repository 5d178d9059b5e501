"""One life of the engine process: start, supervision, end."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_tts.config.settings import ENV_PREFIX
from agent_tts.errors import EngineLost
from agent_tts.ipc.connection import MAX_UNREAD_BYTES, EngineConnection
from agent_tts.ipc.engine_process import EngineProcess
from agent_tts.ipc.wire import TO_ENGINE, Setup, decode, encode
from agent_tts.messages import Append, Audio, EnginePing, EnginePong, EngineReady
from tests.ipc.listener import WAIT_S, Listener, engine_process, shadow_numpy, speak, tone_settings
from tests.support import logged, present, recorded, typed, until

pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and scripts")]


async def told(log: list[str], words: str) -> None:
    """Wait for a line that contains `words`."""
    await until(lambda: any(words in line for line in log), WAIT_S)


@pytest.fixture
def log() -> Iterator[list[str]]:
    with logged("DEBUG") as lines:
        yield lines


@pytest.fixture
def slow_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next engine takes a minute to load; it prints "loading" first."""
    code = "import time; print('loading', flush=True); time.sleep(60)"
    monkeypatch.setenv("PYTHONPATH", shadow_numpy(tmp_path, code))


def use_interpreter(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `script` in place of the next engine process."""
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(path))


# ---------------------------------------------------------------- start


async def test_an_engine_starts_answers_and_ends_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` emits `EngineReady` before it returns; `close` lets the engine exit, which is no loss.

    Five heartbeats are answered within the limit for one. Commands of one tick are one write: hundreds of credits and
    words a second must not cost as many system calls.
    """
    async with engine_process(tone_settings(timeouts={"engine_heartbeat_s": 1.0})) as (link, listener):
        assert isinstance(listener.seen[0], EngineReady)
        assert link.alive
        start = asyncio.get_running_loop().time()
        await listener.until(lambda: len(listener.all(EnginePong)) == 6)
        assert 0.9 < asyncio.get_running_loop().time() - start < 3.0
        writes = recorded(monkeypatch, EngineConnection, "write", lambda _, data: data)
        for nonce in range(100, 150):
            link.send(EnginePing(nonce))
        assert writes == []
        await listener.until(lambda: any(pong.nonce == 149 for pong in listener.all(EnginePong)))
        assert writes[0] == b"".join(encode(EnginePing(nonce)) for nonce in range(100, 150))
    assert not link.alive
    assert str(link._child).endswith("(exit code 0)")
    assert listener.losses == []


def _proc(link: EngineProcess, file: str) -> bytes:
    return Path(f"/proc/{link.pid}/{file}").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_neither_secrets_nor_modules_of_the_current_directory_reach_the_engine_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets not in its environment, arguments or settings. Mutation: without -P it imports the module."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"{ENV_PREFIX}AUTH__API_KEYS", '["hush-key"]')
    monkeypatch.setenv("DATABASE_URL", "hush-elsewhere")
    monkeypatch.setenv("HOMELESS", "hush-prefix")  # names are compared as a whole
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("AgEnT_tTs_ICE_SERVERS", '[{"urls": ["turn:x"], "credential": "hush-word"}]')
    setups = recorded(monkeypatch, EngineConnection, "write", lambda _, data: data)
    settings = tone_settings(
        auth={"api_keys": ["hush-key"]}, ice_servers=[{"urls": ["turn:x"], "credential": "hush-word"}]
    )
    async with engine_process(settings) as (link, _):
        seen = [_proc(link, file) for file in ("environ", "cmdline")]
    assert b"PATH=" in seen[0]
    assert b"OMP_NUM_THREADS=1" in seen[0]
    for data in (*seen, *setups):
        assert b"hush" not in data
        assert b"AGENT_TTS_" not in data.upper()
    [setup] = decode(bytearray(), setups[0], TO_ENGINE)
    assert not {"auth", "ice_servers", "host"} & typed(Setup, setup).settings.keys()


async def test_the_reason_of_a_failed_load_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains the last line that the process printed."""
    monkeypatch.setenv("PYTHONPATH", shadow_numpy(tmp_path, "raise ImportError('no such library')"))
    with pytest.raises(EngineLost, match="ImportError: no such library"):
        await EngineProcess(tone_settings(), lambda _: None, lambda _: None).start()


async def test_a_missing_interpreter_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(EngineLost, match="cannot be spawned"):
        await EngineProcess(tone_settings(), lambda _: None, lambda _: None).start()


@pytest.mark.usefixtures("slow_engine")
async def test_an_engine_that_takes_too_long_is_killed() -> None:
    """The leak gate checks that it is gone. Mutation: without the deadline the test times out."""
    listener = Listener()
    link = EngineProcess(tone_settings(timeouts={"engine_start_s": 0.3}), listener.on_events, listener.on_lost)
    with pytest.raises(EngineLost, match=r"not ready within 0\.3 s"):
        await link.start()
    assert listener.seen == []


@pytest.mark.usefixtures("slow_engine")
@pytest.mark.parametrize(("ended_by", "why"), [("kill", "closed its pipe"), ("close", "stopped"), ("cancel", "")])
async def test_a_start_ends_at_once_with_its_process_or_its_caller(log: list[str], ended_by: str, why: str) -> None:
    """The leak gate checks that the process is gone. Mutation: without `end` in `start` one is left."""
    link = EngineProcess(tone_settings(), lambda _: None, lambda _: None)
    task = asyncio.create_task(link.start())
    await told(log, "engine: loading")
    if ended_by == "kill":
        os.kill(present(link.pid), signal.SIGKILL)
    elif ended_by == "close":
        await link.close()
    else:
        task.cancel()
    with pytest.raises(EngineLost if why else asyncio.CancelledError) as caught:
        await task
    assert why in str(caught.value)


@pytest.mark.parametrize("first", [b"junk, whatever it is", encode(EnginePong(1, 0, 0, 0.0))], ids=["junk", "no hello"])
async def test_a_process_that_is_no_engine_is_refused(
    first: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other output is an error, and the process is killed."""
    (tmp_path / "first").write_bytes(first)
    script = f"#!/bin/sh\ncat {tmp_path}/first\nexec sleep 60\n"
    use_interpreter(tmp_path / "python", script, monkeypatch)
    with pytest.raises(EngineLost, match="broke the protocol"):
        await EngineProcess(tone_settings(), lambda _: None, lambda _: None).start()


# ---------------------------------------------------------------- supervision


async def test_an_engine_that_does_not_read_is_killed() -> None:
    """The commands that wait for it are bounded. Mutation: without the bound the front runs out of memory."""
    async with engine_process(tone_settings(timeouts={"engine_heartbeat_s": 60.0})) as (link, listener):
        os.kill(present(link.pid), signal.SIGSTOP)
        append = Append(1, "x" * 500_000)
        for _ in range(2 * MAX_UNREAD_BYTES // 500_000):  # it may read some before it stops
            link.send(append)
            await asyncio.sleep(0)
        await listener.hellos(2)
        assert listener.losses == ["it does not read its commands"]


async def test_an_engine_whose_pipe_stays_open_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of the engine may hold the pipe. Mutation: without `process_exited` the loss is not detected."""
    script = (
        f"#!{sys.executable}\nimport os, subprocess, sys\nsubprocess.Popen(['sleep', '60'])\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
    )
    use_interpreter(tmp_path / "python", script, monkeypatch)
    async with engine_process(tone_settings()) as (link, listener):
        monkeypatch.undo()
        group = present(link.pid)  # it leads its own session
        os.kill(group, signal.SIGKILL)
        await listener.hellos(2)
        os.killpg(group, signal.SIGKILL)
        assert listener.losses == ["it ended"]


async def test_what_it_sent_and_said_before_its_death_is_there(log: list[str]) -> None:
    """Its audio comes before the loss. Its stderr is logged line by line, and the last line with its death.

    The log alone shows the cause of a crash, and nothing of the text.
    """
    async with engine_process(tone_settings()) as (link, listener):
        pid = link.pid
        speak(link, 1, "a secret word, and enough of others", instructions="fault:crash@3")
        await listener.hellos(2)
        before = listener.seen[: listener.seen.index(listener.losses[0])]
        assert sum(isinstance(event, Audio) for event in before) == 3
    assert "engine: RuntimeError: scripted" in [line.strip() for line in log]
    assert any("in step" in line for line in log)
    assert not any("secret" in line for line in log)
    [death] = [line for line in log if f"engine process {pid} (exit code 70) is lost: it closed its pipe" in line]
    assert "RuntimeError: scripted" in death


async def test_a_fault_of_a_request_is_logged_at_its_level() -> None:
    """A log at the usual level shows it, with its lines. Mutation: it shows only what the loading engine said."""
    with logged("ERROR") as found:
        async with engine_process(tone_settings()) as (link, _):
            speak(link, 1, instructions="fault:raise@0")
            await told(found, "ValueError")
    assert found[0] == "engine: slot 0 failed: ValueError\n"
    assert len(found) > 2


# ---------------------------------------------------------------- commands


async def test_commands_to_a_missing_engine_are_dropped() -> None:
    """Before the start, after a loss, after the close."""
    listener = Listener()
    link = EngineProcess(tone_settings(), listener.on_events, listener.on_lost)
    link.send(EnginePing(7_000))
    await link.start()
    os.kill(present(link.pid), signal.SIGKILL)
    await listener.until(lambda: bool(listener.losses))
    link.send(EnginePing(7_001))
    await listener.hellos(2)
    await link.close()
    link.send(EnginePing(7_002))
    assert not [pong for pong in listener.all(EnginePong) if pong.nonce >= 7_000]
