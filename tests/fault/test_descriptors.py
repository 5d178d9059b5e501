"""Strangers take every file descriptor, and then the engine dies: it comes back, and the node lives."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from agent_tts.bench.node import children_of
from agent_tts.config.settings import Settings
from agent_tts.serve.processes.process import raise_limit_of_files
from agent_tts.system import open_files
from tests.certificates import make_certificate
from tests.hampered import hampered_node
from tests.support import logged

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc"),
]

FILES = 200
BACK_S = 60.0


def test_a_node_that_may_open_too_few_files_says_so_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "raise_limit", lambda _: None)
    with logged() as lines:
        for allowed in (2_560, 2_559):
            monkeypatch.setattr(open_files, "allowed", lambda allowed=allowed: allowed)
            raise_limit_of_files(Settings())
    assert len(lines) == 1
    assert "512 connections and 48 WebRTC peers need 2560 open files, and this process may open 2559" in lines[0]


@pytest.mark.slow
async def test_an_engine_is_spawned_while_unfinished_tls_handshakes_hold_all_others(tmp_path: Path) -> None:
    """The server learns of such a connection only after its handshake; the reserve is for this.

    `tests/attack/connections.py` does the same with connections that the server knows.
    """
    certificate = make_certificate(tmp_path)
    flags = ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key))
    async with hampered_node("--engine", "tone", *flags, files=FILES) as (url, process):
        (engine,) = children_of(process.pid)
        with ExitStack() as taken:
            for _ in range(2 * FILES):
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
                    taken.callback(writer.close)
            os.kill(engine, signal.SIGKILL)
            http = httpx.AsyncClient(base_url=url, verify=certificate.client(), trust_env=False)
            async with asyncio.timeout(BACK_S), http:
                while True:
                    with suppress(httpx.TransportError):
                        replaced = children_of(process.pid) not in ([], [engine])
                        if replaced and (await http.get("/ready")).status_code == 200:
                            break
                    await asyncio.sleep(0.05)
        assert process.returncode is None
