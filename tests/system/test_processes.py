"""Child processes: `run_module` is tested with `timeit`, a module that runs any program."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from agent_tts.system.processes import (
    DEATHS_WITHIN_S,
    ENVIRONMENT,
    TAIL_BYTES,
    Deaths,
    ModuleResult,
    run_module,
    write_private,
)
from tests.support import passes

pytestmark = [pytest.mark.node, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")]


async def python(program: str, data: bytes = b"", *, output_bytes: int = 1_000, timeout_s: float = 20) -> ModuleResult:
    arguments = ("-n", "1", "-r", "1", program)
    return await run_module("timeit", *arguments, data=data, output_bytes=output_bytes, timeout_s=timeout_s)


async def test_bytes_go_in_and_out() -> None:
    """More bytes than a pipe holds, in both directions."""
    data = bytes(range(256)) * 4_096
    echo = "import os, sys; sys.stdout.buffer.write(sys.stdin.buffer.read()); sys.stdout.flush(); os._exit(0)"
    assert await python(echo, data, output_bytes=len(data)) == ModuleResult(0, data, "")


async def test_exit_codes_and_stderr_are_returned() -> None:
    done = await python("import os, sys; print('why', file=sys.stderr, flush=True); os._exit(9)")
    assert (done.code, done.errors) == (9, "why")
    done = await python("import os; os.kill(os.getpid(), 11)")
    assert done.code == -signal.SIGSEGV


async def test_unread_input_is_discarded() -> None:
    assert (await python("import os; os._exit(5)", bytes(1 << 20))).code == 5


async def test_a_process_that_writes_too_much_is_killed() -> None:
    """Mutation: without the limit the child takes all memory."""
    done = await python("import sys\nwhile True: sys.stdout.write('x' * 100)", output_bytes=10_000)
    assert done.code == -signal.SIGKILL
    assert len(done.output) <= 10_000


async def test_only_the_end_of_stderr_is_kept() -> None:
    done = await python("import os, sys; print('x' * 100_000 + 'end', file=sys.stderr, flush=True); os._exit(0)")
    assert len(done.errors) < TAIL_BYTES
    assert done.errors.endswith("xend")


async def test_a_process_that_takes_too_long_is_killed() -> None:
    """The leak gate checks that no process is left, here and in the next tests."""
    with pytest.raises(TimeoutError):
        await python("import time; time.sleep(60)", timeout_s=0.3)


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 5, 8, 13, 100])
async def test_cancelling_leaves_no_process(ticks: int) -> None:
    task = asyncio.create_task(python("import time; time.sleep(60)", bytes(1 << 20)))
    await passes(ticks)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_secrets_of_the_parent_do_not_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TTS_AUTH__API_KEYS", "hush")
    monkeypatch.setenv("DATABASE_URL", "hush")
    done = await python("import os; print(*os.environ, flush=True); os._exit(0)")
    names = set(done.output.decode().split())
    assert "PATH" in names
    assert names <= {*ENVIRONMENT, "LC_CTYPE"}  # set by Python itself


def test_too_many_deaths_within_a_minute_are_the_end_and_others_do_not_count() -> None:
    deaths = Deaths((0.0, 0.5))
    assert [deaths.pause_s(now) for now in (0, 1, 2)] == [0.0, 0.5, None]
    deaths = Deaths((0.0, 0.5))
    assert [deaths.pause_s(number * (DEATHS_WITHIN_S + 1)) for number in range(4)] == [0.0] * 4
    assert deaths.pause_s(3 * (DEATHS_WITHIN_S + 1) + 1) == 0.5


def test_a_private_file_is_never_half_written(tmp_path: Path) -> None:
    """Fails where the file itself is written: one who is killed between leaves an empty one."""
    path = tmp_path / "private" / "key"
    write_private(path, "old")
    with path.open() as file:
        write_private(path, "n\u00e9w \U0001f600")
        assert file.read() == "old"
    assert path.read_text("utf-8") == "n\u00e9w \U0001f600"
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
