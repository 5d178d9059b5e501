"""A node with two fronts in processes of its own: each is killed or stopped at a bad time, and the machine is mean."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.cli.process import environment, is_running, run
from tests.node_process import RunningProcess, running_process
from tests.serve.test_supervisor import callers, is_served_by_both
from tests.support import until
from tests.wire import Wire, speak, wire

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="several fronts need Linux"),
]

TEXT = "While this goes on, somebody else speaks calmly to the end of the text."
SLOTS = 6
BACK_S = 30.0  # for a process to start on a busy machine
SOON_S = 2.0  # for what takes half a second on an idle machine
# What a node shows when nobody uses it.
IDLE = {"sessions": 0, "slots_used": 0, "contexts_queued": 0, "contexts_active": 0, "rtc_peers": 0}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of the shared node."""
    file = tmp_path_factory.mktemp("node") / "node.yaml"
    file.write_text("{}")
    return file


@pytest.fixture(scope="module")
def shared(config: Path) -> Iterator[RunningProcess]:
    """One node for all tests that leave it as it was. No front of it may die five times within a minute."""
    flags = ("--slots", str(SLOTS), "--set", "queue=32", "--config", str(config))
    with running_process(config.parent, "--fronts", "2", *flags) as node:
        yield node


@pytest.fixture
async def node(shared: RunningProcess) -> AsyncIterator[RunningProcess]:
    """The shared node; afterwards it must be as before: idle, with as many descriptors, processes and sockets."""
    await is_served_by_both(shared)
    before = await at_rest(shared)
    yield shared
    await is_served_by_both(shared)
    left = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(BACK_S):
            while (left := await at_rest(shared)) != before:
                await asyncio.sleep(0.1)
    assert left == before
    assert "Traceback" not in shared.log
    assert "has a fault" not in shared.log


async def at_rest(node: RunningProcess) -> dict[str, object]:
    """What a node holds: figures, descriptors of each kind of process, listeners, shared memory."""
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(f"{node.url}/metrics")).text
    held: dict[str, object] = {name: value(page, name) for name in IDLE}
    held |= {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in node.pids().items()}
    held["threads"] = {name: len(os.listdir(f"/proc/{pid}/task")) for name, pid in node.pids().items()}
    held["listeners"] = sum(
        1
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{node.port:04X}") and line.split()[3] == "0A"
    )
    held["shared memory"] = sorted(os.listdir("/dev/shm"))
    return held


def value(page: str, name: str) -> float:
    return sum(float(found) for found in re.findall(rf"^agent_tts_{name}(?:{{.*}})? (.*)$", page, re.MULTILINE))


@asynccontextmanager
async def unhurt(peer: Wire, url: str) -> AsyncIterator[None]:
    """Speech on this connection during the block, which must end whole and bit-equal."""
    expected = await speak(url, TEXT, seed=1, lead_ms=None)
    await peer.say("unhurt", TEXT, seed=1, lead_ms=200)
    await peer.until_audio("unhurt")
    listener = asyncio.create_task(peer.until("context.done", "unhurt"), name="unhurt")
    try:
        yield
        assert (await listener)["reason"] == "end"
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
    assert peer.pcm("unhurt") == expected


async def taker_of(node: RunningProcess, writer: asyncio.StreamWriter) -> str:
    """The front that has accepted a connection, as soon as one has."""
    async with asyncio.timeout(BACK_S):
        while True:
            with suppress(AssertionError):
                return node.front_of(writer.get_extra_info("sockname"))
            await asyncio.sleep(0.01)


async def cut(peer: Wire) -> float:
    """Receive until the connection ends; returns how long that took, in seconds."""
    began = time.monotonic()
    with pytest.raises(ConnectionClosed):
        await peer.until("nothing that ever comes")
    return time.monotonic() - began


async def test_a_front_killed_in_handshakes_and_in_the_queue(node: RunningProcess) -> None:
    """Its newcomers hear at once, and its places in the engine's queue are free."""
    async with callers(node) as peers:
        async with unhurt(peers["front 1"], node.ws_url):
            for number in range(SLOTS + 8):
                await peers["front 0"].say(f"t{number}", TEXT * 3)
            await peers["front 0"].until_audio("t0")
            with ExitStack() as closing:
                readers = []
                for _ in range(16):
                    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
                    closing.callback(writer.close)
                    writer.write(b"GET /v1/tts/stream HTTP/1.1\r\nUpgrade: websocket\r\n")
                    if await taker_of(node, writer) == "front 0":
                        readers.append(reader)
                node.kill("front 0")
                assert await cut(peers["front 0"]) < SOON_S
                async with asyncio.timeout(SOON_S):
                    for reader in readers:
                        with suppress(ConnectionResetError):
                            assert await reader.read() == b""
        await peers["front 1"].say("after", "a word", lead_ms=None)
        assert (await peers["front 1"].until("context.done", "after"))["reason"] == "end"


async def test_a_front_stopped_for_a_while_goes_on_without_a_gap(node: RunningProcess) -> None:
    """Shorter than its heartbeats: nobody loses a frame, not even its own callers."""
    expected = await speak(node.ws_url, TEXT, seed=1, lead_ms=None)
    async with callers(node) as peers:
        async with unhurt(peers["front 1"], node.ws_url):
            for number in range(3):
                await peers["front 0"].say(f"t{number}", TEXT, seed=1, lead_ms=200)
            await peers["front 0"].until_audio("t2")
            node.kill("front 0", signal.SIGSTOP)
            try:
                await asyncio.sleep(3)
            finally:
                node.kill("front 0", signal.SIGCONT)
        for number in range(3):
            assert (await peers["front 0"].until("context.done", f"t{number}"))["reason"] == "end"
            assert peers["front 0"].pcm(f"t{number}") == expected


async def test_the_engine_dies_while_both_fronts_wait_for_slots(node: RunningProcess) -> None:
    async with callers(node) as peers:
        for peer in peers.values():
            for number in range(SLOTS):
                await peer.say(f"t{number}", TEXT * 3)
        await asyncio.gather(*(peer.until("context.started") for peer in peers.values()))
        node.kill("engine 0")
        began = time.monotonic()
        for peer in peers.values():
            for number in range(SLOTS):
                assert (await peer.until("error", f"t{number}"))["code"] == "engine_lost"
        assert time.monotonic() - began < SOON_S


async def test_a_front_dies_again_while_it_starts(node: RunningProcess) -> None:
    async with callers(node) as peers:
        async with unhurt(peers["front 1"], node.ws_url):
            await gone(node, "front 0", node.kill("front 0"))
            node.kill("front 0")


async def test_new_settings_while_a_front_starts(node: RunningProcess, config: Path) -> None:
    """It serves with them, however far its start was."""
    for pause_s, limit in ((0.0, 30), (0.3, 40)):
        await gone(node, "front 1", node.kill("front 1"))
        await asyncio.sleep(pause_s)
        config.write_text(yaml.safe_dump({"limits": {"text_message_chars": limit}}))
        node.process.send_signal(signal.SIGHUP)
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", "x" * 41)
            assert (await peer.until("error", "t"))["code"] == "text_too_long"
            await peer.say("u", "x" * 39, lead_ms=None)
            assert (await peer.until("context.done", "u"))["reason"] == "end"
    config.write_text("{}")
    node.process.send_signal(signal.SIGHUP)
    await until(lambda: node.log.count("SIGHUP") == 3)
    assert "does not use the new settings" not in node.log


async def test_a_stopped_supervisor_and_what_ends_meanwhile(node: RunningProcess) -> None:
    """The ledger is away: newcomers are refused in time, sessions go on, and what has ended is not counted after."""
    async with callers(node) as peers:
        async with unhurt(peers["front 0"], node.ws_url):
            await peers["front 1"].say("t", TEXT)
            await peers["front 1"].until_audio("t")
            node.kill("supervisor", signal.SIGSTOP)
            try:
                began = time.monotonic()
                for _ in range(4):
                    with pytest.raises((InvalidStatus, ConnectionClosed)):
                        async with wire(node.ws_url) as newcomer:
                            await newcomer.until("nothing that ever comes")
                assert time.monotonic() - began < 2 + SOON_S  # a second for each front
                pid = node.kill("front 1")
                assert await cut(peers["front 1"]) < SOON_S
            finally:
                node.kill("supervisor", signal.SIGCONT)
            await gone(node, "front 1", pid)
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", "a word", lead_ms=None)
            assert (await peer.until("context.done", "t"))["reason"] == "end"


async def gone(node: RunningProcess, name: str, pid: int) -> None:
    """Wait until a killed process has a successor."""
    await until(lambda: node.pids().get(name, pid) != pid, BACK_S)


@pytest.mark.parametrize("state", ["killed in its drain", "starting"])
async def test_a_drain_with_a_front_that_is(state: str, tmp_path: Path) -> None:
    """The other front's callers finish, and the exit code is 0."""
    with running_process(tmp_path, "--fronts", "2") as node:
        pids = node.pids()
        async with callers(node) as peers:
            async with unhurt(peers["front 1"], node.ws_url):
                await peers["front 0"].say("t", TEXT)
                await peers["front 0"].until_audio("t")
                if state == "starting":
                    await gone(node, "front 0", node.kill("front 0"))
                node.process.send_signal(signal.SIGTERM)
                if state != "starting":
                    await peers["front 0"].until("session.draining")
                    node.kill("front 0")
                assert await cut(peers["front 0"]) < SOON_S
            assert await cut(peers["front 1"]) < SOON_S
        assert await asyncio.to_thread(node.process.wait, BACK_S) == 0
        assert not [name for name, pid in pids.items() if is_running(pid)]
        assert "Traceback" not in node.log


async def test_a_mean_machine_with_two_nodes(tmp_path: Path) -> None:
    """256 files, no folder for sockets, another node beside, and one that wants its port."""
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    (tmp_path / "other").mkdir()
    mean = environment(TMPDIR=str(folder / "absent"))
    with (
        running_process(tmp_path, "--fronts", "2", files=256, env=mean) as node,
        running_process(tmp_path / "other", "--fronts", "2") as other,
    ):
        async with callers(other) as peers, unhurt(peers["front 0"], other.ws_url):
            with ExitStack() as closing:
                for _ in range(2 * 256):
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
                        closing.callback(writer.close)
                pid = node.kill("front 0")
                done = await asyncio.to_thread(
                    run, "serve", "--engine", "tone", "--port", str(node.port), "--fronts", "2"
                )
                assert (done.returncode, b"choose another --port" in done.stderr) == (2, True), done.stderr
                await gone(node, "front 0", pid)
                node.kill("engine 0")
                await is_served_by_both(node)
            node.kill("supervisor")
            await until(lambda: node.process.poll() is not None)


async def test_a_restart_under_many_clients_that_come_back(tmp_path: Path) -> None:
    """All are served by the next node on the port, and leave nothing."""
    clients = 200
    with running_process(tmp_path, "--fronts", "2", "--slots", "64") as node:
        port = node.port
        spoken = [0] * clients
        ends = asyncio.Event()

        async def client(number: int) -> None:
            while not ends.is_set():
                with suppress(OSError, ConnectionClosed, InvalidStatus, TimeoutError, EOFError):
                    async with asyncio.timeout(BACK_S), wire(node.ws_url) as peer:
                        await peer.say("t", "a word", lead_ms=None)
                        done = await peer.until("context.done", "t")
                        spoken[number] += done["reason"] == "end"
                await asyncio.sleep(0.5)

        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(client(number))
            await until(lambda: all(spoken), BACK_S)
            node.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(node.process.wait, BACK_S) == 0
            again = tmp_path / "again"
            again.mkdir()
            with running_process(again, "--fronts", "2", "--slots", "64", "--port", str(port)) as following:
                spoken[:] = [0] * clients
                await until(lambda: all(spoken), BACK_S)
                ends.set()
                await until(lambda: len(asyncio.all_tasks()) < clients, BACK_S)
                async with asyncio.timeout(BACK_S):
                    while (await at_rest(following))["sessions"]:
                        await asyncio.sleep(0.05)
                for name in node.log, following.log:
                    assert "Traceback" not in name
