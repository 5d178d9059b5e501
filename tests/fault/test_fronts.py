"""A node with several fronts: each process is killed or stopped at a bad time, the machine is mean, clients come back.

Only the callers of the process that is hit may notice, and nothing may be left.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.cli.process import environment, is_running, run
from tests.fault.witness import undisturbed
from tests.node_process import BACK_S, RunningProcess, callers, running_process, served_by_all
from tests.rtc_peer import connected
from tests.support import ended, until
from tests.wire import Wire, speak, wire

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="several fronts need Linux"),
]

TEXT = "Somebody else speaks calmly to the end."
SLOTS = 6
SOON_S = 30.0  # for what takes half a second on an idle machine
FILES = 256
CLIENTS = 200
# Figures that are 0 while nobody uses a node.
FIGURES = ("sessions", "slots_used", "contexts_queued", "contexts_active", "rtc_peers")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of the shared node."""
    file = tmp_path_factory.mktemp("node") / "node.yaml"
    file.write_text("{}")
    return file


@pytest.fixture(scope="module")
def shared(config: Path) -> Iterator[RunningProcess]:
    """One node for all tests that leave it as it was. None of its fronts may die five times within a minute."""
    flags = ("--slots", str(SLOTS), "--set", "queue=32", "--set", "limits.rtc_peers=1", "--config", str(config))
    with running_process(config.parent, "--fronts", "2", *flags) as node:
        yield node


@pytest.fixture
async def node(shared: RunningProcess) -> AsyncIterator[RunningProcess]:
    """The shared node, which must hold the same before and after a test."""
    await served_by_all(shared)
    before = await at_rest(shared)
    yield shared
    await served_by_all(shared)
    assert await at_rest(shared, before) == before
    assert "Traceback" not in shared.log
    assert "has a fault" not in shared.log


async def at_rest(node: RunningProcess, expected: dict[str, object] | None = None) -> dict[str, object]:
    """What a node holds as soon as nobody uses it and nothing changes, or as it is expected: see `held`."""
    now: dict[str, object] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(BACK_S), httpx.AsyncClient(trust_env=False) as client:
            while True:
                before, now = now, held(node, (await client.get(f"{node.url}/metrics")).text)
                if now == (expected or before) and not any(now[name] for name in FIGURES):
                    break
                await asyncio.sleep(0.1)
    return now


def held(node: RunningProcess, page: str) -> dict[str, object]:
    """Figures, descriptors of each process and threads of the engine, listening sockets, shared memory."""
    found: dict[str, Any] = {
        name: sum(map(float, re.findall(rf"^agent_tts_{name}(?:{{.*}})? (.*)$", page, re.MULTILINE)))
        for name in FIGURES
    }
    for name, pid in node.pids().items():  # one of the fronts has the connection for the figures
        kind = name.partition(" ")[0]
        # The others have pools of threads, once they are used.
        for things in ("fd", "task") if kind == "engine" else ("fd",):
            found[f"{kind} {things}"] = found.get(f"{kind} {things}", 0) + len(os.listdir(f"/proc/{pid}/{things}"))
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found["listening"] = sum(fields[1].endswith(f":{node.port:04X}") and fields[3] == "0A" for fields in sockets)
    found["shared memory"] = sorted(os.listdir("/dev/shm"))
    return found


async def speaks(peer: Wire) -> None:
    await peer.say("a word", "a word", lead_ms=None)
    assert (await peer.until("context.done", "a word"))["reason"] == "end"


async def cut(peer: Wire) -> float:
    """Receive until the connection ends; returns how long that took, in seconds."""
    began = time.monotonic()
    with pytest.raises(ConnectionClosed):
        await peer.until("nothing that ever comes")
    return time.monotonic() - began


async def replaced(node: RunningProcess, name: str, pid: int) -> None:
    """Wait until a killed process has a successor, which may be starting."""
    await until(lambda: node.pids().get(name, pid) != pid, BACK_S)


async def newcomers(node: RunningProcess, front: str, count: int, closing: ExitStack) -> list[asyncio.StreamReader]:
    """Connections to a front, in the middle of their handshakes."""
    readers: list[asyncio.StreamReader] = []
    async with asyncio.timeout(BACK_S):
        while len(readers) < count:
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            closing.callback(writer.close)
            writer.write(b"GET /v1/tts/stream HTTP/1.1\r\nUpgrade: websocket\r\n")
            taken_by = None
            while taken_by is None:  # accepted by no front yet
                with suppress(AssertionError):
                    taken_by = node.front_of(writer.get_extra_info("sockname"))
                await asyncio.sleep(0.01)
            if taken_by == front:
                readers.append(reader)
    return readers


async def test_a_front_is_killed_in_handshakes_in_the_queue_and_with_a_webrtc_peer(node: RunningProcess) -> None:
    """All its clients hear of it at once but the peer; the only place for one is free, as are those in the queue."""
    with ExitStack() as closing:
        async with connected(node.url) as rtc, callers(node) as peers:
            victim = f"front {rtc.session_id.partition('-')[0]}"
            (other,) = peers.keys() - {victim}
            async with undisturbed(node.ws_url, peers[other]):
                for number in range(SLOTS + 8):
                    await peers[victim].say(f"t{number}", TEXT * 3)
                await peers[victim].until_audio("t0")
                readers = await newcomers(node, victim, 4, closing)
                pid = node.kill(victim)
                assert await cut(peers[victim]) < SOON_S
                async with asyncio.timeout(SOON_S):
                    for reader in readers:
                        with suppress(ConnectionResetError):
                            assert await reader.read() == b""
            await speaks(peers[other])
    await until(lambda: f"{victim} process {pid} (signal 9) is lost: " in node.log)
    assert f"process {pid} (signal 9) is lost: no answer" not in node.log  # noticed at once
    async with connected(node.url):
        pass


async def test_a_front_that_stands_for_three_seconds_goes_on_without_a_gap(node: RunningProcess) -> None:
    """Its heartbeats may take five: nobody loses a frame, its own callers neither."""
    expected = await speak(node.ws_url, TEXT, seed=1, lead_ms=None)
    async with callers(node) as peers:
        async with undisturbed(node.ws_url, peers["front 1"]):
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


async def test_a_node_that_stands_as_a_whole_goes_on_with_all_callers(node: RunningProcess) -> None:
    """As its container is paused, and its machine moved. Fails where the engine counts how long fronts were silent."""
    async with callers(node) as peers:
        for name, peer in peers.items():
            await peer.say(name, TEXT * 3)
            await peer.until_audio(name)
        pids = node.pids()
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(7)
        for name in sorted(pids):  # the engine first
            os.kill(pids[name], signal.SIGCONT)
            await asyncio.sleep(0.3)
        for name, peer in peers.items():
            assert (await peer.until("context.done", name))["reason"] == "end"
        assert node.pids() == pids


@pytest.mark.slow
async def test_the_engine_dies_while_callers_of_both_fronts_wait_for_slots(node: RunningProcess) -> None:
    async with callers(node) as peers:
        for peer in peers.values():
            for number in range(SLOTS):
                await peer.say(f"t{number}", TEXT * 3)
            await peer.send("ping", t="all are taken")
        await asyncio.gather(*(peer.until("pong") for peer in peers.values()))
        node.kill("engine 0")
        began = time.monotonic()
        for peer in peers.values():
            for number in range(SLOTS):
                assert (await peer.until("error", f"t{number}"))["code"] == "engine_lost"
        assert time.monotonic() - began < SOON_S
    for number in (0, 1):
        assert f"front {number}: engine 0 is lost with {SLOTS} utterances" in node.log


@pytest.mark.slow
async def test_a_front_dies_while_it_starts_and_settings_are_read_again(node: RunningProcess, config: Path) -> None:
    """Its successor serves with the new settings, however far its start was."""
    async with callers(node) as peers, undisturbed(node.ws_url, peers["front 1"]):
        await replaced(node, "front 0", node.kill("front 0"))
        pid = node.kill("front 0")
        for pause_s, chars in ((0.0, 30), (0.3, 40)):
            await replaced(node, "front 0", pid)
            await asyncio.sleep(pause_s)
            reload(node, config, chars)
    await served_by_all(node)
    async with callers(node) as peers:
        for peer in peers.values():
            await peer.say("t", "x" * 41)
            assert (await peer.until("error", "t"))["code"] == "text_too_long"
            await peer.say("u", "x" * 39, lead_ms=None)
            assert (await peer.until("context.done", "u"))["reason"] == "end"
    reload(node, config, 4_000)
    await until(lambda: node.log.count("SIGHUP") == 3)
    assert "does not use the new settings" not in node.log


def reload(node: RunningProcess, config: Path, chars: int) -> None:
    config.write_text(yaml.safe_dump({"limits": {"text_message_chars": chars}}))
    node.process.send_signal(signal.SIGHUP)


@pytest.mark.slow
async def test_the_supervisor_stands_and_a_front_dies_meanwhile(node: RunningProcess) -> None:
    """The ledger is away: newcomers are refused in time and sessions go on; what has ended is not counted after."""
    async with callers(node) as peers:
        async with undisturbed(node.ws_url, peers["front 0"]):
            await peers["front 1"].say("t", TEXT)
            await peers["front 1"].until_audio("t")
            node.kill("supervisor", signal.SIGSTOP)
            try:
                async with asyncio.timeout(1 + SOON_S):
                    await asyncio.gather(*[refused(node) for _ in range(8)])
                pid = node.kill("front 1")
                assert await cut(peers["front 1"]) < SOON_S
            finally:
                node.kill("supervisor", signal.SIGCONT)
            await replaced(node, "front 1", pid)
        await speaks(peers["front 0"])


async def refused(node: RunningProcess) -> None:
    async with wire(node.ws_url) as peer:
        assert (await peer.until("error"))["code"] == "at_capacity"
        await cut(peer)


@pytest.mark.slow
async def test_a_machine_with_few_files_and_no_folder_beside_another_node(node: RunningProcess, tmp_path: Path) -> None:
    """Strangers hold all that a node may open while a front and the engine die; another node wants its port."""
    absent = tmp_path / ("x" * 200) / "absent"
    with running_process(tmp_path, "--fronts", "2", files=FILES, env=environment(TMPDIR=str(absent))) as mean:
        async with callers(node) as peers, undisturbed(node.ws_url, peers["front 0"]):
            with ExitStack() as closing:
                for _ in range(2 * FILES):
                    with suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", mean.port)
                        closing.callback(writer.close)
                pid = mean.kill("front 0")
                flags = ("--engine", "tone", "--fronts", "2", "--port", str(mean.port))
                done = await asyncio.to_thread(run, "serve", *flags)
                assert (done.returncode, b"choose another --port" in done.stderr) == (2, True), done.stderr
                await replaced(mean, "front 0", pid)
                mean.kill("engine 0")
                await served_by_all(mean)
            pids = mean.pids()
            mean.kill("supervisor")
            await until(lambda: mean.process.poll() is not None)
            await until(lambda: not any(map(is_running, pids.values())))
            await until(lambda: is_free(mean.port))  # a thread of a killed process may end later


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError:
            return False
    return True


@pytest.mark.slow
async def test_a_front_is_killed_in_a_drain(tmp_path: Path) -> None:
    """The callers of the other finish, and the exit code is 0. `test_shutdown.py` drains fronts that start."""
    with running_process(tmp_path, "--fronts", "2") as node:
        async with callers(node) as peers:
            async with undisturbed(node.ws_url, peers["front 1"]):
                await peers["front 0"].say("t", "word " * 200)
                await peers["front 0"].until_audio("t")
                pids = node.pids()
                node.process.send_signal(signal.SIGTERM)
                await peers["front 0"].until("session.draining")
                async with httpx.AsyncClient() as client:
                    page = (await client.get(f"{node.url}/metrics")).text
                assert re.search(r"^agent_tts_draining [12]", page, re.M)
                node.kill("front 0")
                assert await cut(peers["front 0"]) < SOON_S
            assert await cut(peers["front 1"]) < SOON_S
        assert await asyncio.to_thread(node.process.wait, BACK_S) == 0
        assert not [name for name, pid in pids.items() if is_running(pid)]
        assert "Traceback" not in node.log


@pytest.mark.slow
async def test_a_restart_under_many_clients_that_come_back(tmp_path: Path) -> None:
    """All connect at once, are served by the next node on the port, and leave nothing."""
    flags = ("--fronts", "2", "--set", f"queue={CLIENTS}", "--set", f"timeouts.queue_s={BACK_S}")
    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        folder.mkdir()
    served: set[int] = set()

    async def client(url: str, number: int) -> None:
        while True:
            with suppress(OSError, EOFError, ConnectionClosed, InvalidStatus, TimeoutError):
                async with wire(url) as peer:
                    await speaks(peer)
                    served.add(number)
                    await peer.socket.wait_closed()
            await asyncio.sleep(0.2)

    clients: list[asyncio.Task[None]] = []
    try:
        with running_process(folders[0], *flags) as first:
            clients += [asyncio.create_task(client(first.ws_url, number)) for number in range(CLIENTS)]
            await until(lambda: len(served) == CLIENTS, BACK_S)
            first.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.process.wait, BACK_S) == 0
            served.clear()
        with running_process(folders[1], *flags, "--port", str(first.port)) as second:
            await until(lambda: len(served) == CLIENTS, BACK_S)
            await ended(*clients)
            left = await at_rest(second)
            assert not any(left[name] for name in FIGURES), left
            for node in (first, second):
                assert "Traceback" not in node.log
    finally:
        await ended(*clients)
