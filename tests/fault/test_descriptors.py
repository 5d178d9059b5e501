"""Strangers take every file descriptor, and then the engine dies: it comes back, and the node lives."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.serve.processes.process import raise_limit_of_files
from agent_tts.system import open_files
from tests.certificates import make_certificate
from tests.cli.process import children_of
from tests.hampered import hampered_node

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc"),
]

FILES = 200
BACK_S = 20.0


async def besieged(url: str, pid: int, sends: bytes, verify: ssl.SSLContext | bool = True) -> None:
    """Take all descriptors and kill the engine; it is replaced, and requests are answered again."""
    port = int(url.rpartition(":")[2])
    (engine,) = children_of(pid)
    with ExitStack() as taken:
        for _ in range(2 * FILES):
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                taken.callback(writer.close)
                writer.write(sends)
        os.kill(engine, signal.SIGKILL)
        async with asyncio.timeout(BACK_S), httpx.AsyncClient(base_url=url, verify=verify, trust_env=False) as http:
            while True:
                with suppress(httpx.TransportError):
                    if (await http.get("/ready")).status_code == 200 and children_of(pid) not in ([], [engine]):
                        break
                await asyncio.sleep(0.05)


def test_a_node_that_may_open_too_few_files_says_so_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(open_files, "raise_limit", lambda _: None)
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    try:
        for allowed in (2_560, 2_559):
            monkeypatch.setattr(open_files, "allowed", lambda allowed=allowed: allowed)
            raise_limit_of_files(Settings())
    finally:
        logger.remove(sink)
    assert len(lines) == 1
    assert "512 connections and 48 WebRTC peers need 2560 open files, and this process may open 2559" in lines[0]


async def test_connections_give_way_before_they_have_taken_all() -> None:
    async with hampered_node("--engine", "tone", files=FILES) as (url, process):
        await besieged(url, process.pid, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert process.returncode is None


async def test_an_engine_is_spawned_while_unfinished_tls_handshakes_hold_all_others(tmp_path: Path) -> None:
    """The server learns of such a connection only after its handshake; the reserve is for this."""
    certificate = make_certificate(tmp_path)
    flags = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key))
    async with hampered_node("--engine", "tone", *flags, files=FILES) as (url, process):
        await besieged(url, process.pid, b"", certificate.client())
        assert process.returncode is None
