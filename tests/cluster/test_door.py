"""The real HAProxy in front of real nodes: who gets which caller, and what callers lose when something dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent_tts.agent import server
from agent_tts.cluster import haproxy
from agent_tts.cluster.directory import NodeAddress
from agent_tts.cluster.door import LOOK_S, Door
from agent_tts.errors import SettingsError
from tests.agent.caller import Caller
from tests.certificates import make_certificate
from tests.cli.process import is_running
from tests.node_process import running_process
from tests.rtc_peer import connected
from tests.serve.telemetry.test_tracing import assert_traced, watched
from tests.support import (
    RunningNode,
    app_with,
    in_this_loop,
    logged,
    present,
    running_app,
    running_node,
    settings_of,
    until,
)
from tests.wire import Wire, speak, wire

pytestmark = [pytest.mark.node, pytest.mark.real_time]

TEXT = "Every frame is counted."
AGENT = {"stt": {"kind": "none"}, "llm": {"base_url": "http://127.0.0.1:9/v1"}}
KEYS = {"auth": {"api_keys": ["one"]}, "fleet": {"secret": "a secret of all nodes, long enough"}}
KEY = {"Authorization": "Bearer one"}


def door_of(folder: Path, port: int = 0, **callers: Any) -> Door:
    return Door(port, "127.0.0.1", folder, haproxy.Callers(**callers))


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[Door]:
    door = door_of(**dict[str, Any](folder=folder / "door") | options)
    await door.start()
    try:
        yield door
    finally:
        await door.close()


# Paths that are /metrics for a node, or would be behind one more proxy.
METRICS = (
    "/metrics",
    "/%6Detrics",
    "/%6d%65trics?x=1",
    "/metrics%2F",
    "//metrics",
    "/%2fmetrics",
    "/./metrics",
    "/metrics/",
    "http://x/metrics",
    "/docs/%2e%2e/metrics",
)


async def raw_status(door: Door, path: str) -> int:
    """The status of a path as it is written: HTTP clients would decode it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


def url(door: Door, scheme: str = "http") -> str:
    path = "/v1/tts/stream" if scheme.startswith("ws") else ""
    return f"{scheme}://127.0.0.1:{door.port}{path}"


def address(name: str, of: Any) -> NodeAddress:
    """Of a node, in this loop or in a process."""
    return NodeAddress(name, "127.0.0.1", int(of.url.rpartition(":")[2]))


async def have(door: Door) -> dict[str, haproxy.Server]:
    """The servers of its HAProxy, by name."""
    async with door._talk:
        return {server.name: server for server in haproxy.servers(await door._ask(haproxy.LOOK))}


async def until_servers(door: Door, right: Callable[[dict[str, haproxy.Server]], bool]) -> None:
    async with asyncio.timeout(10):
        while not right(await have(door)):
            await asyncio.sleep(0.02)


async def until_up(door: Door, *names: str) -> None:
    await until_servers(door, lambda servers: {server.name for server in servers.values() if server.up} == {*names})


@asynccontextmanager
async def fleet(folder: Path, count: int, **values: Any) -> AsyncIterator[tuple[Door, dict[str, RunningNode]]]:
    """A door, and so many nodes in this loop, all ready."""
    async with AsyncExitStack() as closing:
        nodes = {}
        for number in range(count):
            name = f"node-{number}"
            settings = {**values, "fleet": {**values.get("fleet", {}), "node": name}}
            nodes[name] = await closing.enter_async_context(running_node(**settings))
        door = await closing.enter_async_context(opened(folder))
        await door.update([address(name, node) for name, node in nodes.items()])
        await until_up(door, *nodes)
        yield door, nodes


async def finished(peer: Wire, context: str = "t") -> bytes:
    """All audio of a context that is spoken to its end."""
    assert (await peer.until("context.done", context))["reason"] == "end"
    return peer.pcm(context)


async def test_callers_are_spread_and_stay_while_their_node_drains(tmp_path: Path) -> None:
    """20 WebSockets on 4 nodes; then one node is taken away, and comes back."""
    async with fleet(tmp_path, 4) as (door, nodes), AsyncExitStack() as closing:
        pid, (first, *others) = door.pid, nodes
        whole = await speak(nodes[first].ws_url, TEXT)
        peers = [await closing.enter_async_context(wire(url(door, "ws"))) for _ in range(20)]
        assert [len(node.node.sessions) for node in nodes.values()] == [5] * 4
        for peer in peers:
            await peer.say("t", TEXT)
        await door.update([address(name, nodes[name]) for name in others])
        more = [await closing.enter_async_context(wire(url(door, "ws"))) for _ in range(3)]
        assert [len(node.node.sessions) for node in nodes.values()] == [5, 6, 6, 6]
        assert {await finished(peer) for peer in peers} == {whole}
        assert (await have(door))[first].state == "drain"  # it answers: its peers' signalling may come
        await door.update([address(name, node) for name, node in nodes.items()])
        await closing.enter_async_context(wire(url(door, "ws")))
        assert [len(node.node.sessions) for node in nodes.values()] == [6] * 4
        for peer in more:
            await peer.say("t", TEXT)
        assert {await finished(peer) for peer in more} == {whole}
        assert door.pid == pid
        assert (await door._ask("show info")).count("Stopping: 0")


async def test_requests_that_belong_together_find_their_node(tmp_path: Path) -> None:
    """The end of a WebRTC call, also while its node drains; a token of one node on others."""
    async with fleet(tmp_path, 3, **KEYS) as (door, nodes), AsyncExitStack() as closing:
        http = await closing.enter_async_context(httpx.AsyncClient(base_url=url(door), headers=KEY))
        calls = [await closing.enter_async_context(connected(url(door), KEY)) for _ in range(3)]
        owners = [name for call in calls for name, node in nodes.items() if call.session_id in node.node.peers]
        assert [call.session_id.partition(".")[0] for call in calls] == owners
        await door.update([address(name, nodes[name]) for name in nodes if name != owners[0]])
        nodes[owners[1]].node.service.draining = True
        await until_servers(door, lambda servers: not servers[owners[1]].up)
        for call in calls:
            assert (await http.delete(f"/v1/rtc/{call.session_id}")).status_code == 204
            assert (await http.delete(f"/v1/rtc/{call.session_id}")).status_code == 404
        assert not any(node.node.peers for node in nodes.values())
        nodes[owners[1]].node.service.draining = False
        assert (await http.delete("/v1/rtc/nobody.00112233")).status_code == 404

        spoken = []
        for _ in range(2):
            token = (await http.post("/v1/tokens")).json()["token"]
            spoken.append(await speak(f"{url(door, 'ws')}?token={token}", TEXT))
        assert spoken[0] == spoken[1] != b""
        for path in METRICS:
            assert await raw_status(door, path) == 404, path
        assert (await http.get("/ready")).json() == {"status": "ok"}
        file = await http.post("/v1/audio/speech", json={"input": TEXT, "response_format": "pcm"})
        assert file.content == spoken[0]


async def test_candidates_of_a_call_find_its_node(tmp_path: Path) -> None:
    """They are told by a PATCH whose body names the call."""
    async with AsyncExitStack() as closing:
        nodes = {}
        for name in ("one", "two"):
            settings = settings_of(agent=AGENT, fleet={"node": name})
            app = app_with(settings, in_this_loop(settings), server.extension(settings))
            nodes[name] = await closing.enter_async_context(running_app(app))
        door = await closing.enter_async_context(opened(tmp_path))
        await door.update([address(name, node) for name, node in nodes.items()])
        await until_up(door, *nodes)
        caller = Caller()
        closing.push_async_callback(caller.close)
        async with httpx.AsyncClient(timeout=20) as http:
            offer = {"sdp": await caller.offer(), "type": "offer"}
            answer = (await http.post(f"{url(door)}/api/agent/offer", json=offer)).json()
            candidate = "candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host"
            found = {"pc_id": answer["pc_id"], "candidates": [{"candidate": candidate}]}
            for _ in nodes:
                assert (await http.patch(f"{url(door)}/api/agent/offer", json=found)).status_code == 204


async def test_a_node_without_room_gets_no_callers_and_keeps_its_own(tmp_path: Path) -> None:
    """Both say 503 in the end: newcomers get a refusal that says when to try again, those who are in nothing."""
    async with fleet(tmp_path, 2, slots=2, limits={"ready_share": 0.5}) as (door, nodes), AsyncExitStack() as closing:
        for count, full in ((1, {"node-0"}), (2, set(nodes))):
            peer = await closing.enter_async_context(wire(url(door, "ws")))
            await peer.send("context.open", context_id="t")
            await peer.send("text.append", context_id="t", text=TEXT)
            await peer.until("context.started")
            await until_servers(door, lambda servers: sum(not server.up for server in servers.values()) == count)  # noqa: B023
            assert len(full) == count
        assert [len(node.node.sessions) for node in nodes.values()] == [1, 1]
        with pytest.raises(InvalidStatus) as refused:
            await closing.enter_async_context(wire(url(door, "ws")))
        response = refused.value.response
        assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
        assert b'"at_capacity"' in response.body
        async with httpx.AsyncClient() as http:
            reply = await http.get(f"{url(door)}/ready")
            assert (reply.status_code, reply.json()) == (503, {"status": "no_node"})
        await peer.send("context.end", context_id="t")
        await finished(peer)


@pytest.mark.slow
async def test_a_node_that_ends_and_one_that_is_killed(tmp_path: Path) -> None:
    """SIGTERM: callers hear all of what is spoken. SIGKILL: only its own callers notice."""
    async with AsyncExitStack() as closing:
        nodes: dict[str, Any] = {}
        for name in ("ends", "dies"):
            (tmp_path / name).mkdir()
            nodes[name] = closing.enter_context(running_process(tmp_path / name))
        nodes["lives"] = await closing.enter_async_context(running_node())
        door = await closing.enter_async_context(opened(tmp_path))
        whole = await speak(nodes["lives"].ws_url, TEXT)
        peers = {}
        for name in nodes:  # one caller each
            await door.update([address(name, nodes[name])])
            await until_servers(door, lambda servers: servers[name].up)  # noqa: B023
            peers[name] = await closing.enter_async_context(wire(url(door, "ws")))
            await peers[name].say("t", TEXT, lead_ms=200)
        await door.update([address(name, node) for name, node in nodes.items()])
        for peer in peers.values():
            await peer.until_audio("t", 2)
        nodes["ends"].process.send_signal(signal.SIGTERM)
        nodes["dies"].process.kill()
        with pytest.raises(ConnectionClosed):
            await finished(peers["dies"])
        assert await finished(peers["ends"]) == await finished(peers["lives"]) == whole
        await until_up(door, "lives")
        assert await speak(url(door, "ws"), TEXT) == whole
        await door.update([address("lives", nodes["lives"])])
        await until_servers(door, lambda servers: [*servers] == ["lives"])


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_haproxy_that_dies_or_hangs_is_back_with_its_servers(
    sig: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_tts.cluster.door.HUNG_S", 0.3)
    monkeypatch.setattr("agent_tts.cluster.door.ANSWER_S", 0.3)
    async with fleet(tmp_path, 2) as (door, nodes):
        pid = present(door.pid)
        os.kill(pid, sig)
        await until(lambda: not runs(pid))
        assert await speak(url(door, "ws"), TEXT) != b""  # it waits, and is not refused
        assert door.pid != pid
        assert [*await have(door)] == [*nodes]
        await door.update([NodeAddress("node-0", "127.0.0.1", 9), address("node-1", nodes["node-1"])])
        await until_up(door, "node-1")
        await door.update([])  # the other has nobody to wait for
        await until_servers(door, lambda servers: [*servers] == ["node-1"])


def runs(pid: int) -> bool:
    """Whether a thread of a process is neither dead nor stopped."""
    try:
        return any(task.read_text().split()[2] not in "TXZ" for task in Path(f"/proc/{pid}/task").glob("*/stat"))
    except OSError:  # it is just going
        return True


PROGRAM = """
import asyncio, sys
from pathlib import Path
from agent_tts.cluster.door import Door
from agent_tts.cluster.directory import NodeAddress
from agent_tts.cluster.haproxy import Callers

async def main(folder, port):
    door = Door(0, "127.0.0.1", Path(folder), Callers())
    await door.start()
    await door.update([NodeAddress("one", "127.0.0.1", int(port))])
    print(door.port, door.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_door_that_is_killed_loses_no_caller(tmp_path: Path) -> None:
    """HAProxy goes on, and the next door adopts it; one that wants it otherwise leaves the old one its callers."""
    async with running_node() as node, AsyncExitStack() as closing:
        command = (sys.executable, "-c", PROGRAM, str(tmp_path / "door"), str(address("one", node).port))
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        port, pid = map(int, (await present(process.stdout).readline()).split())
        with pytest.raises(SettingsError, match="another door uses it"):
            await door_of(tmp_path / "door").start()
        process.kill()
        await process.wait()

        async with opened(tmp_path, port=port) as door:
            assert door.pid == pid
            peer = await closing.enter_async_context(wire(url(door, "ws")))
            await peer.say("t", TEXT)
            await asyncio.sleep(2 * LOOK_S)  # without an update its servers stay
            assert (await have(door))["one"].state == "ready"
            with socket.create_server(("127.0.0.1", 0)) as free:
                metrics_port = free.getsockname()[1]
            door._files.close()  # its lock
            async with opened(tmp_path, port=port, metrics_port=metrics_port) as other:
                assert other.pid != pid
                await other.update([address("one", node)])
                await until_up(other, "one")
                assert await speak(url(other, "ws"), TEXT) == await finished(peer)
                other.tell("watching", False)
                await asyncio.sleep(4 * LOOK_S)
                async with httpx.AsyncClient() as http:
                    page = (await http.get(f"http://127.0.0.1:{metrics_port}/metrics")).text
                assert 'haproxy_server_current_sessions{proxy="nodes",server="one"}' in page
                down = 'haproxy_server_status{{proxy="machine",server="{}",state="MAINT"}} {}'
                assert down.format("watching", 1) in page
                assert down.format("ray", 0) in page
                assert is_running(pid)
                await peer.socket.close()
                await until(lambda: not is_running(pid))


async def test_tls_whose_certificate_is_renewed(tmp_path: Path) -> None:
    """HAProxy has the new certificate without a restart."""
    pem = tmp_path / "door.pem"
    old, new = (make_certificate(tmp_path / name) for name in ("old", "new"))
    pem.write_bytes(old.cert.read_bytes() + old.key.read_bytes())
    async with running_node() as node, opened(tmp_path, tls_pem=str(pem)) as door:
        await door.update([address("one", node)])
        await until_up(door, "one")
        pid = door.pid
        async with wire(url(door, "wss"), ssl=old.client()) as peer:
            pem.write_bytes(new.cert.read_bytes() + new.key.read_bytes())
            async with asyncio.timeout(10), httpx.AsyncClient(verify=new.client()) as http:
                while not await answers(http, f"{url(door, 'https')}/ready"):
                    await asyncio.sleep(0.05)
            await peer.say("t", TEXT)
            assert await finished(peer) == await speak(node.ws_url, TEXT)
        assert door.pid == pid


async def test_a_certificate_that_clients_refuse_is_told(tmp_path: Path) -> None:
    """At the start, and when it is renewed; once each."""
    pem = tmp_path / "door.pem"
    old, new = make_certificate(tmp_path / "old", days=-1), make_certificate(tmp_path / "new", days=-2)
    pem.write_bytes(old.cert.read_bytes() + old.key.read_bytes())
    with logged() as log:
        async with opened(tmp_path, tls_pem=str(pem)):
            assert len([line for line in log if "has expired" in line]) == 1
            pem.write_bytes(new.cert.read_bytes() + new.key.read_bytes())
            await until(lambda: len([line for line in log if "has expired" in line]) == 2)


async def test_a_haproxy_that_dies_while_its_certificate_is_broken_is_back_with_the_one_that_it_had(
    tmp_path: Path,
) -> None:
    """Fails where the next one reads the file: then nobody is let in until an operator has mended it."""
    made = make_certificate(tmp_path / "made")
    pem = tmp_path / "door.pem"
    pem.write_bytes(made.cert.read_bytes() + made.key.read_bytes())
    async with running_node() as node, opened(tmp_path, tls_pem=str(pem)) as door:
        await door.update([address("one", node)])
        await until_up(door, "one")
        breaks: dict[str, Callable[[], object]] = {
            "keeps the certificate": lambda: pem.write_bytes(b"\xff"),
            "No such file": pem.unlink,
            "no regular file": lambda: os.mkfifo(pem),
        }
        for said, broken in breaks.items():
            with logged() as log:
                broken()
                await until(lambda: any(said in line for line in log))  # noqa: B023
            os.kill(before := present(door.pid), signal.SIGKILL)
            await until(lambda: door.pid not in (None, before))
            async with httpx.AsyncClient(verify=made.client(), timeout=10) as http:
                assert (await http.get(f"{url(door, 'https')}/ready")).is_success
        pem.unlink()
        new = make_certificate(tmp_path / "new")
        pem.write_bytes(new.cert.read_bytes() + new.key.read_bytes())
        async with asyncio.timeout(10), httpx.AsyncClient(verify=new.client()) as http:
            while not await answers(http, f"{url(door, 'https')}/ready"):
                await asyncio.sleep(0.05)


async def answers(http: httpx.AsyncClient, address: str) -> bool:
    try:
        return (await http.get(address)).is_success
    except httpx.TransportError:
        return False


def told(address: str) -> bytes:
    """What a load balancer sends before all else: version 2 of the PROXY protocol, TCP from an address."""
    version = ip_address(address).version
    body = ip_address(address).packed * 2 + struct.pack("!HH", 50_000, 443)
    return b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!BBH", 0x21, 0x11 if version == 4 else 0x21, len(body)) + body


async def asked(door: Door, path: str, before: bytes) -> bytes:
    """The whole answer to a request that follows other bytes; nothing if the door does not speak with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    try:
        async with asyncio.timeout(5):
            writer.write(before + f"GET {path} HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n".encode())
            return await reader.read()
    finally:
        writer.close()


async def test_a_load_balancer_tells_the_address_and_an_address_has_so_many_connections(tmp_path: Path) -> None:
    settings = settings_of()
    app = app_with(settings, in_this_loop(settings))
    seen = Route("/seen", lambda request: PlainTextResponse(request.headers["X-Forwarded-For"]))
    app.router.routes.insert(0, seen)
    async with running_app(app) as node, opened(tmp_path, accept_proxy=True, connections_per_address=2) as door:
        await door.update([address("one", node)])
        await until_up(door, "one")
        for mine, same, other in (
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("2001:db8:0:1::1", "2001:db8:0:1::2", "2001:db8:0:2::1"),
        ):
            async with AsyncExitStack() as closing:
                for _ in range(2):
                    sock = socket.create_connection(("127.0.0.1", door.port))
                    sock.sendall(told(mine))
                    peer = await closing.enter_async_context(wire(url(door, "ws"), sock=sock))
                head, _, body = (await asked(door, "/seen", told(same))).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 429 ")
                assert b"retry-after: 1" in head.lower()
                assert json.loads(body)["error"]["code"] == "rate_limited"
                assert (await asked(door, "/seen", told(other))).endswith(f"\r\n\r\n{other}".encode())
                assert (await asked(door, "/ready", told(same))).startswith(b"HTTP/1.1 200 ")  # a load balancer's look
                await peer.say("t", TEXT)
                await finished(peer)
            async with asyncio.timeout(5):
                while not (await asked(door, "/seen", told(same))).startswith(b"HTTP/1.1 200 "):
                    await asyncio.sleep(0.02)
        with pytest.raises(ConnectionResetError):
            await asked(door, "/ready", b"")


async def test_a_trace_follows_a_caller_through_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(monkeypatch) as (node, memory), opened(tmp_path) as door:
        await door.update([address("one", node)])
        await until_up(door, "one")
        await assert_traced(url(door), memory)


async def test_a_caller_that_vanishes_is_noticed_by_the_node(tmp_path: Path) -> None:
    """It resets a WebSocket, and closes a request that waits for its first audio."""
    async with fleet(tmp_path, 1, slots=1, queue=4, timeouts={"queue_s": 20}) as (door, nodes):
        (node,) = nodes.values()
        async with wire(url(door, "ws")) as peer:
            await peer.say("t", TEXT * 100)  # has the only slot
            await peer.until("context.started")
            async with httpx.AsyncClient() as http:
                with pytest.raises(httpx.ReadTimeout):
                    await http.post(f"{url(door)}/v1/audio/speech", json={"input": TEXT}, timeout=0.5)
            await until_servers(door, lambda servers: servers["node-0"].sessions == 1)
            peer.socket.transport.abort()
        await until_servers(door, lambda servers: servers["node-0"].sessions == 0)
        await until(lambda: not node.node.sessions, 2)


async def test_a_door_that_closes_waits_for_its_callers(tmp_path: Path) -> None:
    async with fleet(tmp_path, 1) as (door, nodes), wire(url(door, "ws")) as peer:
        whole = await speak(nodes["node-0"].ws_url, TEXT)
        await peer.say("t", TEXT)
        closing = asyncio.create_task(door.close(20))
        async with asyncio.timeout(5), httpx.AsyncClient() as http:
            while await answers(http, f"{url(door)}/ready"):
                await asyncio.sleep(0.01)
        assert await finished(peer) == whole
        assert not closing.done()
        await peer.socket.close()
        async with asyncio.timeout(5):
            await closing


async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    async with opened(tmp_path) as door:
        wrong: dict[str, dict[str, Any]] = {
            "in use": {"port": door.port, "folder": tmp_path / "other"},
            "bad.pem": {"tls_pem": str(tmp_path / "bad.pem"), "folder": tmp_path / "other"},
            "others may write there": {"folder": tmp_path / "open"},
        }
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(stat.S_IRWXU | stat.S_IWGRP)
        for why, options in wrong.items():
            with pytest.raises(SettingsError, match=why):
                await door_of(**options).start()
        with pytest.raises(ValueError, match="one name"):
            await door.update([NodeAddress("one", "127.0.0.1", 1), NodeAddress("one", "127.0.0.1", 2)])
