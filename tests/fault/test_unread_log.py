"""Nobody reads the node's stderr: it loses lines, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import sys

import httpx
import pytest

from tests.hampered import hampered_node

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe"),
]

GARBAGE = 400


async def test_garbage_of_strangers_does_not_stop_a_node_whose_log_is_unread() -> None:
    """Without a writer of its own the log fills the pipe, and the event loop stands still in its next line."""
    async with hampered_node("--engine", "tone", "--set", "auth.api_keys=[key]") as (url, process):
        port = int(url.rpartition(":")[2])
        for _ in range(GARBAGE):
            _, out = await asyncio.open_connection("127.0.0.1", port)
            out.write(b"\x16\x03\x01 garbage\r\n\r\n")
            out.close()
        async with httpx.AsyncClient(base_url=url, headers={"X-API-Key": "key"}, trust_env=False) as http:
            assert (await http.get("/health")).status_code == 200
            speech = {"input": "Still here.", "response_format": "pcm"}
            assert (await http.post("/v1/audio/speech", json=speech)).content
            metrics = (await http.get("/metrics")).text
        repeated = 'agent_tts_log_lines_lost_total{reason="repeated"} '
        assert float(metrics.partition(repeated)[2].split()[0]) > GARBAGE / 2
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
