"""A node with two fronts, in processes of its own: it is one node. What its faults do: `tests/fault/test_fronts.py`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.process import is_running, run
from tests.node_process import RunningProcess, callers, running_process, served_by_all
from tests.support import figures, until

pytestmark = [
    pytest.mark.node,
    pytest.mark.real_time,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="several fronts need Linux"),
]

TEXT = "While this goes on, somebody speaks calmly to the end of the text."
HEARTBEAT_S = 2.0
PATIENCE_S = 20.0
FLAGS = ("--fronts", "2", "--slots", "8", "--set", f"timeouts.engine_heartbeat_s={HEARTBEAT_S}")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProcess]:
    """One node for all tests that leave it as it was."""
    with running_process(tmp_path_factory.mktemp("node"), *FLAGS) as running:
        yield running


async def test_connections_are_spread_and_both_fronts_speak_alike(node: RunningProcess) -> None:
    assert node.log.count("agent-tts: http") == 1
    assert sorted(node.pids()) == ["engine 0", "front 0", "front 1", "supervisor"]
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", TEXT, seed=1, lead_ms=None)
            await peer.until("context.done")
        assert len({peer.pcm("t") for peer in peers.values()}) == 1
        found = await figures(node.url)
    assert found["agent_tts_contexts_total", (("carrier", "websocket"), ("reason", "end"))] == 2
    assert found["agent_tts_engine_up", (("engine", "0"),)] == 1
    assert found["agent_tts_slots", ()] == 8


def processes(node: RunningProcess) -> dict[str, list[bytes]]:
    """The command line and the environment of each."""
    return {
        name: [Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
        for name, pid in node.pids().items()
    }


def test_no_descriptor_is_passed_on_to_decoders(node: RunningProcess) -> None:
    """uvloop closes none in a child: a decoder, which reads clients' files, would have the links and the channel."""
    for name, pid in node.pids().items():
        passed = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        for info in Path(f"/proc/{pid}/fdinfo").iterdir():
            (octal,) = re.findall(r"^flags:\s+(\d+)$", info.read_text(), re.MULTILINE)
            flags = int(octal, 8)
            # All sockets but stdin, stdout and stderr, of which uvloop leaves copies, are non-blocking.
            if int(info.name) > 2 and (info.name in passed or flags & os.O_NONBLOCK):
                assert flags & os.O_CLOEXEC, (name, os.readlink(f"/proc/{pid}/fd/{info.name}"))


async def test_a_hung_front_is_replaced_and_its_callers_are_told(node: RunningProcess) -> None:
    async with callers(node) as peers:
        pid = node.kill("front 1", signal.SIGSTOP)
        await peers["front 1"].close_code()
        await peers["front 0"].say("t", "a word", lead_ms=None)
        await peers["front 0"].until("context.done", "t")
    await served_by_all(node)
    assert f"front 1 process {pid} (signal 9) is lost: no answer for {HEARTBEAT_S:g} s" in node.log


async def test_no_secret_is_in_a_command_line(tmp_path: Path) -> None:
    environ = os.environ | {"AGENT_TTS_AUTH__API_KEYS": "sesame"}
    with running_process(tmp_path, "--fronts", "2", env=environ) as node:
        async with httpx.AsyncClient(base_url=node.url) as http:
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.get("/v1/models", headers={"authorization": "Bearer sesame"})).status_code == 200
        for name, (command, environment) in processes(node).items():
            assert b"sesame" not in command
            assert (b"sesame" in environment) is (name == "supervisor")


@pytest.mark.slow
async def test_a_front_that_keeps_dying_ends_the_node(tmp_path: Path) -> None:
    with running_process(tmp_path, "--fronts", "2") as node:
        pids = node.pids()
        async with asyncio.timeout(60):
            while node.process.poll() is None:
                if (pid := node.pids().get("front 0")) is not None:
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0.02)
        assert node.process.returncode == 1
        assert "front 0 died 5 times within a minute: the node exits" in node.log
        assert "Traceback" not in node.log
        await until(lambda: not any(map(is_running, pids.values())))


@pytest.mark.slow
def test_a_setting_that_only_a_front_refuses_ends_the_start() -> None:
    done = run("serve", "--engine", "tone", "--port", "0", "--fronts", "2", "--set", "voices.folder=not/absolute")
    assert done.returncode == 2, done.stderr
    says = b"agent-tts: voices.folder: it has to be absolute, start with ~, or be an address such as s3://\n"
    assert done.stderr == says


@pytest.mark.slow
@pytest.mark.parametrize("fronts", ["1", "2"])
def test_an_engine_that_does_not_start_is_one_line(fronts: str) -> None:
    limit = "timeouts.engine_start_s=0.001"
    done = run("serve", "--port", "0", "--engine", "tone", "--fronts", fronts, "--set", limit)
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert "the engine did not start (not ready within 0.001 s)" in line
