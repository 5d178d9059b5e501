"""F6: a WebRTC client vanishes without closing. ICE alone would detect it after half a minute."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from tests.fault.witness import undisturbed
from tests.rtc_peer import connected
from tests.support import RunningNode, running_node, until

CLIENT = Path(__file__).parent.parent / "rtc_peer.py"


async def vanishes(node: RunningNode, pings: bool, how: signal.Signals) -> float:
    """Seconds until the node drops a client that vanished while it received speech."""
    client: Process = await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT), node.url, str(int(pings)), stdout=PIPE
    )
    try:
        assert client.stdout is not None
        async with asyncio.timeout(20):
            session_id = (await client.stdout.readline()).decode().strip()
        assert session_id in node.node.peers
        await asyncio.sleep(1.5)  # long enough for receiver reports
        start = time.monotonic()
        client.send_signal(how)
        await until(lambda: session_id not in node.node.peers, 20.0)
        return time.monotonic() - start
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()


@pytest.mark.parametrize(("engine", "how"), [("tone", signal.SIGKILL), ("espeak", signal.SIGSTOP)])
async def test_a_client_that_pinged_is_dropped_in_5_s_and_any_other_in_12(engine: str, how: signal.Signals) -> None:
    """Mutation: without the silence check of `RtcPeer._close_reason` both stay for 30 s."""
    async with running_node(engine=engine) as node:
        async with undisturbed(node.ws_url):
            own, foreign = await asyncio.gather(vanishes(node, True, how), vanishes(node, False, how))
        assert own <= 5.0
        assert 9.0 < foreign <= 12.0
        assert node.node.service.speaking == 0
        assert not node.node.sessions


async def test_a_client_that_only_listens_is_kept_by_its_receiver_reports() -> None:
    """It sends nothing else for longer than the silence limit."""
    async with running_node() as node, connected(node.url) as peer:
        await asyncio.sleep(11)
        assert peer.session_id in node.node.peers


async def test_a_client_that_stops_pinging_is_dropped_although_it_listens() -> None:
    """Its page's script has died."""
    async with running_node() as node, connected(node.url) as peer:
        peer.send("ping", t=1)
        await peer.message("pong")
        await until(lambda: not node.node.peers, 5.0)
