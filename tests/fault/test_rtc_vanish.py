"""F6: a WebRTC client vanishes without closing. ICE alone would detect it after half a minute."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.fault.witness import undisturbed
from tests.rtc_peer import RtcPeer, connected
from tests.support import RunningNode, running_node, until


def vanish(peer: RtcPeer, *, killed: bool) -> None:
    """From now on a client sends nothing: as one that was killed, whose ports are closed, or as one that is stopped."""
    ice: Any = peer.connection.getTransceivers()[0].receiver.transport.transport._connection
    for protocol in ice._protocols:
        protocol.transport.sendto = protocol.datagram_received = lambda *_: None
        if killed:
            protocol.transport.abort()


async def vanishes(node: RunningNode, *, pings: bool, killed: bool) -> float:
    """Seconds until the node drops a client that vanished while it received speech."""
    async with connected(node.url) as peer:
        peer.say("t1", "a " * 1_000)
        await peer.wait(peer.loud)
        for number in range(3):  # long enough for receiver reports
            if pings:
                peer.send("ping", t=number)
            await asyncio.sleep(0.5)
        vanish(peer, killed=killed)
        began = time.monotonic()
        await until(lambda: peer.session_id not in node.node.peers)
        return time.monotonic() - began


@pytest.mark.slow
async def test_a_client_that_pinged_is_dropped_in_5_s_any_other_in_12_and_one_that_listens_is_kept() -> None:
    """With room for a busy machine. Receiver reports are all that a listener sends.

    Mutation: without the silence check of `RtcPeer._close_reason` they stay for 30 s.
    """
    async with running_node() as node:
        async with undisturbed(node.ws_url), connected(node.url) as listener:
            own, own_killed, foreign, foreign_killed = await asyncio.gather(
                *(vanishes(node, pings=pings, killed=killed) for pings in (True, False) for killed in (False, True))
            )
            assert max(own, own_killed) < 8 < min(foreign, foreign_killed)
            assert max(foreign, foreign_killed) < 20
            assert listener.session_id in node.node.peers
        assert node.node.service.speaking == 0
        await until(lambda: not node.node.sessions)


async def test_a_client_that_stops_pinging_is_dropped_although_it_listens() -> None:
    """Its page's script has died."""
    async with running_node() as node, connected(node.url) as peer:
        peer.send("ping", t=1)
        await peer.message("pong")
        await until(lambda: not node.node.peers, 8.0)
