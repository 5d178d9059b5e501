"""A node with two fronts, in processes of its own: it is one node, and who is hit when a process dies or stops."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.cli.process import is_running, run
from tests.node_process import RunningProcess, callers, running_process, served_by_all
from tests.support import figures, until
from tests.wire import speak, wire

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


def test_a_second_node_on_the_port_is_refused(node: RunningProcess) -> None:
    """One with one front, and one with several, whose sockets could share the port."""
    for fronts in ("1", "2"):
        done = run("serve", "--engine", "tone", "--port", str(node.port), "--fronts", fronts)
        assert (done.returncode, b"choose another --port" in done.stderr) == (2, True), done.stderr


@asynccontextmanager
async def greeted(node: RunningProcess, count: int, query: str = "", **headers: str) -> AsyncIterator[list[str]]:
    """Of so many connections at once those that open a session, by their fronts."""
    async with AsyncExitStack() as closing:
        opening = (wire(f"{node.ws_url}{query}", additional_headers=headers) for _ in range(count))
        peers = await asyncio.gather(*map(closing.enter_async_context, opening))
        first = await asyncio.gather(*(peer.receive() for peer in peers))
        welcome = [peer for peer, told in zip(peers, first, strict=True) if told and told["type"] == "session.created"]
        yield [node.front_of(peer.socket.local_address) for peer in welcome]


async def test_a_key_counts_on_both_fronts_and_no_secret_is_in_a_command_line_or_an_environment(tmp_path: Path) -> None:
    """All forms of the counts: `access/test_node_counts.py`."""
    environ = os.environ | {"AGENT_TTS_AUTH__API_KEYS": "sesame"}
    headers = {"authorization": "Bearer sesame"}
    fronts = set()
    with running_process(tmp_path, "--fronts", "2", "--set", "limits.sessions_per_key=8", env=environ) as node:
        async with httpx.AsyncClient(base_url=node.url) as http:
            assert (await http.get("/v1/audio/voices")).status_code == 401
            for _ in range(6):
                token = (await http.post("/v1/tokens", headers=headers)).json()["token"]
                async with greeted(node, 4, f"?token={token}") as opened:
                    assert len(opened) == 1
                    fronts |= {*opened}
        async with greeted(node, 16, **headers) as opened:
            assert len(opened) == 8
            assert len(fronts | {*opened}) == 2
        for name, (command, environment) in processes(node).items():
            assert b"sesame" not in command
            assert (b"sesame" in environment) is (name == "supervisor")


def processes(node: RunningProcess) -> dict[str, list[bytes]]:
    """The command line and the environment of each."""
    return {
        name: [Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
        for name, pid in node.pids().items()
    }


async def test_the_page_of_any_front_has_what_both_have_done(node: RunningProcess) -> None:
    done = ("agent_tts_contexts_total", (("carrier", "websocket"), ("reason", "end")))
    before = (await figures(node.url)).get(done, 0.0)
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", "some words", lead_ms=None)
            await peer.until("context.done")
        for _ in range(6):
            found = await figures(node.url)
            assert found[done] == before + 2
            assert found["agent_tts_front_up", (("front", "0"),)] == found["agent_tts_front_up", (("front", "1"),)] == 1
            assert found["agent_tts_engine_up", (("engine", "0"),)] == 1
            assert found["agent_tts_slots", ()] == 8
            assert found["agent_tts_sessions", ()] >= 2


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


async def test_the_death_of_a_front_hits_only_its_callers(node: RunningProcess) -> None:
    expected = await speak(node.ws_url, TEXT, seed=1, lead_ms=None)
    async with callers(node) as peers:
        for peer in peers.values():
            for number in range(4):  # all slots
                await peer.say(f"t{number}", TEXT, seed=1, lead_ms=200)
            await peer.until_audio("t3")
        pid = node.kill("front 0")
        with pytest.raises(ConnectionClosed):
            await peers["front 0"].until("nothing that ever comes")
        for number in range(4):
            assert (await peers["front 1"].until("context.done", f"t{number}"))["reason"] == "end"
            assert peers["front 1"].pcm(f"t{number}") == expected
        for number in range(8):  # the slots of the dead front are free
            await peers["front 1"].say(f"u{number}", "a word", lead_ms=None)
            assert (await peers["front 1"].until("context.done", f"u{number}"))["reason"] == "end"
    await served_by_all(node)
    assert re.search(rf"front 0 process {pid} \(signal 9\) is lost: (?!no answer)", node.log)  # noticed at once


async def test_the_death_of_the_engine_is_survived_by_both_fronts(node: RunningProcess) -> None:
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", TEXT * 3, lead_ms=200)
            await peer.until_audio("t")
        node.kill("engine 0")
        for peer in peers.values():
            assert (await peer.until("error", "t"))["code"] == "engine_lost"
    await served_by_all(node)
    for number in (0, 1):
        assert f"front {number}: engine 0 is lost with 1 utterances" in node.log


async def test_a_stopped_supervisor_stops_no_call(node: RunningProcess) -> None:
    expected = await speak(node.ws_url, TEXT, seed=1, lead_ms=None)
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", TEXT, seed=1, lead_ms=200)
            await peer.until_audio("t")
        node.kill("supervisor", signal.SIGSTOP)
        try:
            for peer in peers.values():
                assert (await peer.until("context.done", "t"))["reason"] == "end"
                assert peer.pcm("t") == expected
        finally:
            node.kill("supervisor", signal.SIGCONT)


async def test_a_hung_front_is_replaced_and_its_callers_are_told(node: RunningProcess) -> None:
    async with callers(node) as peers:
        pid = node.kill("front 1", signal.SIGSTOP)
        with pytest.raises(ConnectionClosed):
            await peers["front 1"].until("nothing that ever comes")
        await peers["front 0"].say("t", "a word", lead_ms=None)
        await peers["front 0"].until("context.done", "t")
    await served_by_all(node)
    assert f"front 1 process {pid} (signal 9) is lost: no answer for {HEARTBEAT_S:g} s" in node.log


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


async def test_the_death_of_the_supervisor_ends_all(tmp_path: Path) -> None:
    with running_process(tmp_path, *FLAGS) as node:
        pids = node.pids()
        async with callers(node) as peers:
            for peer in peers.values():
                await peer.say("t", TEXT)
                await peer.until_audio("t")
            node.kill("supervisor")
            for peer in peers.values():
                with pytest.raises(ConnectionClosed):
                    await peer.until("nothing that ever comes")
        node.process.wait()
        await until(lambda: not any(map(is_running, pids.values())))
        await until(lambda: is_free(node.port))  # a thread of a killed process may end later


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:
            return False
    return True


def test_a_setting_that_only_a_front_refuses_ends_the_start() -> None:
    done = run("serve", "--engine", "tone", "--port", "0", "--fronts", "2", "--set", "voices.folder=not/absolute")
    assert done.returncode == 2, done.stderr
    says = b"agent-tts: voices.folder: it has to be absolute, start with ~, or be an address such as s3://\n"
    assert done.stderr == says


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_an_engine_that_does_not_start_is_one_line(fronts: str) -> None:
    limit = "timeouts.engine_start_s=0.001"
    done = run("serve", "--port", "0", "--engine", "tone", "--fronts", fronts, "--set", limit)
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert "the engine did not start (not ready within 0.001 s)" in line
