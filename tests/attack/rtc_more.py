"""Peers with a key that dispute roles, invent sources, speak faster than time and read nothing; and come and go."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import pack
from typing import Any

import httpx
from aioice import stun
from aiortc.rtp import RtpPacket

from tests.agent.caller import Caller, calling
from tests.attack.aborts import ROOM
from tests.attack.harness import Broken, Target, agent_node, attack
from tests.attack.rtc import AT_ONCE, CALLS, Sctp, chunk, heartbeats, messages
from tests.rtc_peer import RtcPeer, connected

MAX_CHECKS = 200  # of one peer in some seconds: a check for each pair, its repetitions and disputes
LONGEST_PACKET = b"\xfb\x06" + b"\xff\xfe" * 6  # 120 ms of silence
EMPTY_REPORT = b"\x80\xc9\0\1\0\0\0\1"
ENDLESS_BANDWIDTH = b"\x8f\xce\0\4" + bytes(8) + b"REMB\xc8\0\0\1"  # says that 200 sources follow


@attack("roles disputed without end, before DTLS", settings=ROOM)
async def disputes(target: Target) -> str:
    """Each check is answered by 487, at once."""
    peers = [RtcPeer() for _ in range(AT_ONCE)]
    sessions, asked = [], [0] * len(peers)
    try:
        async with httpx.AsyncClient(base_url=target.url, headers=target.headers) as client:
            for number, peer in enumerate(peers):
                offer = await peer.offer()
                ice: Any = peer.connection.getTransceivers()[0].receiver.transport.transport._connection

                def dispute(
                    message: stun.Message, address: Any, protocol: Any, number: int = number, ice: Any = ice
                ) -> None:
                    asked[number] += 1
                    ice.respond_error(message, address, protocol, (487, "Role Conflict"))

                ice.request_received = dispute
                reply = await client.post("/v1/rtc/offer", json={"sdp": offer, "type": "offer"})
                sessions.append(reply.json()["session_id"])
            await asyncio.sleep(target.scaled(10, 1))
            for session in sessions:
                await client.delete(f"/v1/rtc/{session}")
        if max(asked) > MAX_CHECKS:
            raise Broken(f"a peer was checked {max(asked)} times")
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))
    return f"{sum(asked)} checks of {len(peers)} peers"


async def sources(sctp: Sctp, until: float) -> None:
    """RTCP of a new source in each datagram."""
    for number in itertools.count(1):
        if time.monotonic() > until or sctp.gone:
            break
        await rtp(sctp, pack("!BBHL", 0x80, 201, 1, number))


async def reports(sctp: Sctp, until: float) -> None:
    """As many reports as a datagram holds."""
    while time.monotonic() < until and not sctp.gone:
        await rtp(sctp, EMPTY_REPORT * 150)


async def bandwidth(sctp: Sctp, until: float) -> None:
    """An estimate of the bandwidth that is cut off."""
    await rtp(sctp, ENDLESS_BANDWIDTH)
    while time.monotonic() < until and not sctp.gone:
        await asyncio.sleep(0.05)


async def unread(sctp: Sctp, until: float) -> None:
    """Messages whose answers are never acknowledged."""
    transport: Any = sctp.transport
    transport._send_sack = lambda: asyncio.sleep(0)
    while time.monotonic() < until and not sctp.gone:
        await messages(sctp, time.monotonic() + 0.1)


async def initial(sctp: Sctp, until: float) -> None:
    """The association begins again and again."""
    transport = sctp.transport
    body = pack("!LLHHL", transport._local_verification_tag, 2**20, 65_535, 65_535, transport._local_tsn)
    transport._remote_verification_tag = 0
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(chunk(1, body))


async def rtp(sctp: Sctp, packet: bytes) -> None:
    """Send RTP or RTCP, and let others work."""
    with contextlib.suppress(ConnectionError):
        await sctp.transport.transport._send_rtp(packet)
    await asyncio.sleep(0)


WAYS: tuple[Callable[[Sctp, float], Awaitable[None]], ...] = (sources, reports, bandwidth, unread, initial)


@attack("RTCP and associations that no library sends", settings=ROOM)
async def hostile_peers(target: Target) -> str:
    ended = []
    for way in WAYS:
        async with _connected(target) as peer:
            sctp = Sctp(peer)
            await way(sctp, time.monotonic() + target.scaled(6, 0.3))
            await asyncio.sleep(target.scaled(1, 0.2))
            ended += [way.__name__] if sctp.gone else []
    return f"{len(WAYS)} kinds; ended: {', '.join(ended)}"


@attack("all peers of a key at their highest rates", settings=ROOM)
async def together(target: Target) -> str:
    async with contextlib.AsyncExitStack() as all_peers:
        peers = [await all_peers.enter_async_context(_connected(target)) for _ in range(AT_ONCE)]
        until = time.monotonic() + target.scaled(15, 0.7)
        ways = itertools.cycle([messages, reports, heartbeats, messages])
        await asyncio.gather(*(way(Sctp(peer), until) for way, peer in zip(ways, peers, strict=False)))
    return f"{len(peers)} peers"


@attack("peers that come and go", settings=ROOM)
async def come_and_go(target: Target) -> str:
    """Some are deleted while they connect, some never answer, some only go away."""
    count, refused = 0, 0
    until = time.monotonic() + target.scaled(30, 1)
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers) as client:
        for kind in itertools.cycle(range(3)):
            if time.monotonic() > until:
                break
            async with RtcPeer() as peer:
                reply = await client.post("/v1/rtc/offer", json={"sdp": await peer.offer(), "type": "offer"})
                if reply.status_code != 200:
                    refused += 1
                    await asyncio.sleep(0.1)
                    continue
                count += 1
                path = f"/v1/rtc/{reply.json()['session_id']}"
                if kind == 0:
                    await peer.accept(reply.json())
                    await peer.message("session.created")
                elif kind == 1:
                    await peer.accept(reply.json())
                    await asyncio.gather(*(client.delete(path) for _ in range(3)))
                else:
                    await client.delete(path)
    return f"{count} peers, {refused} refused"


@attack("a microphone faster than time", node=agent_node, settings=CALLS)
async def microphone(target: Target) -> str:
    """Packets of 120 ms, 1 000 a second; empty ones; and of many sources, whose reports no RTCP packet holds."""
    sent = 0
    before = target.rss_mib()
    async with _callers(target) as callers:
        until = time.monotonic() + target.scaled(15, 0.7)
        while time.monotonic() < until:
            for caller, _ in itertools.product(callers, range(10)):
                sent += 1
                payload = b"" if sent % 100 == 0 else LONGEST_PACKET
                packet = RtpPacket(
                    payload_type=96, sequence_number=sent % 65_536, timestamp=5_760 * sent % 2**32, payload=payload
                )
                packet.ssrc = sent if sent % 3 == 0 else 7
                with contextlib.suppress(ConnectionError):
                    await caller.connection.sctp.transport._send_rtp(packet.serialize())  # pyrefly: ignore[missing-attribute]
            await asyncio.sleep(0.01)
        grown = target.rss_mib() - before
    if grown > 100:
        raise Broken(f"{len(callers)} calls hold {grown:.0f} MiB")
    return f"{sent} packets into {len(callers)} calls, which held {grown:.0f} MiB"


@attack("a caller who types without a full stop", node=agent_node, settings=CALLS)
async def typed(target: Target) -> str:
    """Messages of 8 KB, and then one that nobody types."""
    sent = 0
    async with _callers(target) as callers:
        until = time.monotonic() + target.scaled(15, 0.7)
        while time.monotonic() < until:
            for caller in callers:
                if caller.channel.readyState == "open" and caller.channel.bufferedAmount < 100_000:
                    caller.type("hello there friend " * 420)
                    sent += 1
            await asyncio.sleep(0.01)
        for caller in callers:
            if caller.channel.readyState == "open":
                caller.type("hello there friend " * 2_500)
        await asyncio.sleep(target.scaled(5, 0.3))
    return f"{sent} messages in {len(callers)} calls"


@attack("calls one after another", node=agent_node, settings={**CALLS, "agent__stt__kind": "scripted"}, warms=True)
async def one_by_one(target: Target) -> str:
    """Each loads models for its turns, which go with it: none is left to a collection of garbage."""
    count, held = int(target.scaled(20, 2)), []
    for _ in range(count):
        async with calling(target.url, target.headers) as caller:
            await caller.ask("Hello there.")
        held.append(target.rss_mib())
    return f"{count} calls; MiB after each: {', '.join(f'{mib:.0f}' for mib in held)}"


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[RtcPeer]:
    """A peer that leaves nothing at the node, whatever has become of its association."""
    async with connected(target.url, target.headers) as peer:
        yield peer
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers) as client:
        await client.delete(f"/v1/rtc/{peer.session_id}")


@asynccontextmanager
async def _callers(target: Target) -> AsyncIterator[list[Caller]]:
    async with contextlib.AsyncExitStack() as calls:
        yield [await calls.enter_async_context(calling(target.url, target.headers)) for _ in range(2)]
