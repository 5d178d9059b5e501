"""UDP of strangers to WebRTC peers, and peers with a key whose SCTP, RTCP and candidates no library would send."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import pack
from typing import Any

import httpx
from aioice.ice import get_host_addresses
from aiortc import InvalidStateError, RTCSctpTransport
from aiortc.rtp import RtpPacket
from google_crc32c import value as crc32c

from agent_tts.bench.statistics import background
from tests.attack.harness import Broken, Target, agent_node, attack
from tests.rtc_peer import RtcPeer, connected

Address = tuple[str, int]

TEXT = "Somebody listens over WebRTC while strangers send datagrams to every port of the node. " * 4
MAX_HELD_MIB = 32.0  # memory that all peers of one key may take together under a flood
AT_ONCE = 4  # sessions of one key
CALLS = {"agent__stt__kind": "none", "limits__sessions_per_key": 64}
FRAGMENT = b"\x00" * 4

PORTS = (32_768, 61_000)  # that Linux gives to sockets

RECORD = b"\xfe\xfd" + bytes(8)  # version, epoch 0, sequence number 0
ALERT = b"\x15" + RECORD + b"\x00\x02\x02\x28"  # fatal: handshake_failure
JUNK = [
    ALERT,
    b"\x15" + RECORD + b"\x00\x02\x01\x00",  # close_notify
    b"\x16" + RECORD + b"\x00\x10" + os.urandom(16),
    b"\x16" + RECORD + b"\x00\x0c" + b"\x0e\0\0\0\0\0\0\0\0\0\0\0",  # server hello done
    b"\x17" + RECORD + b"\x00\x20" + os.urandom(32),
    b"\x14" + RECORD + b"\x00\x01\x01",
    b"\x3f" * 40,
    b"\x80\x6f" + os.urandom(80),
    b"\x00\x01\x00\x00" + bytes.fromhex("2112a442") + os.urandom(12),
    b"\x00\x01\x00\x08" + bytes.fromhex("2112a442") + os.urandom(12) + b"\x00\x24\x00\x00\x80\x29\x00\x00",
    b"\x00",
    b"",
]


# ---------------------------------------------------------------- strangers


class Stranger:
    """A UDP socket that nobody knows."""

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.sent = 0

    async def send(self, *datagrams: bytes) -> None:
        """Send each datagram to every address."""
        for datagram, address in itertools.product(datagrams, self._addresses):
            with contextlib.suppress(OSError):
                self._socket.sendto(datagram, address)
            self.sent += 1
            if self.sent % 200 == 0:
                await asyncio.sleep(0)

    @asynccontextmanager
    async def sending(self, *datagrams: bytes) -> AsyncIterator[None]:
        """Send them again and again meanwhile."""

        async def run() -> None:
            while True:
                await self.send(*datagrams)
                await asyncio.sleep(0.001)

        async with background(run(), "datagrams"):
            yield

    def close(self) -> None:
        self._socket.close()


@attack("UDP datagrams to every port, without a key")
async def sweep(target: Target) -> str:
    addresses = get_host_addresses(use_ipv4=True, use_ipv6=False) or ["127.0.0.1"]
    async with _listening(target) as peer:
        own = _ports(peer.connection.localDescription.sdp)  # aiortc on the other side would not survive it
        everywhere = sorted(set(itertools.product(addresses, range(*PORTS))) - set(own))
        with contextlib.closing(Stranger(everywhere)) as stranger, contextlib.suppress(TimeoutError):
            await stranger.send(b"")
            async with asyncio.timeout(target.scaled(15, 0.3)):
                while True:
                    await stranger.send(*JUNK)
        await _still_hears(peer)
    return f"{stranger.sent} datagrams to {len(everywhere)} ports"


@attack("alerts and junk during handshakes, without a key")
async def handshakes(target: Target) -> str:
    tries, sent = int(target.scaled(20, 2)), 0
    for _ in range(tries):
        peer = RtcPeer()
        try:
            answer = await _offer(target, peer, target.other_key)
            with contextlib.closing(Stranger(_ports(answer["sdp"]))) as stranger:
                async with stranger.sending(*JUNK):
                    await peer.accept(answer)
                    await peer.message("session.created", 10)
            sent += stranger.sent
        except TimeoutError:
            raise Broken("a handshake did not survive a stranger's records") from None
        finally:
            await peer.close()
    return f"{tries} of {tries} connected under {sent} datagrams"


@attack("UDP floods to half-open peers")
async def half_open(target: Target) -> str:
    """Peers that never answer, and peers that have answered connectivity checks but never begin DTLS."""
    before, most = target.rss_mib(), 0.0
    peers = [RtcPeer() for _ in range(AT_ONCE)]
    data = b"\x17" + RECORD + pack("!H", 1_400) + os.urandom(1_400)
    try:
        ports: list[Address] = []
        for number, peer in enumerate(peers):
            answer = await _offer(target, peer, target.key)
            peer.session_id = answer["session_id"]
            ports += _ports(answer["sdp"])
            if number % 2:
                await _only_ice(peer, answer)
        with contextlib.closing(Stranger(ports)) as stranger:
            until = time.monotonic() + target.scaled(12, 0.5)
            while time.monotonic() < until:
                await stranger.send(*[data, os.urandom(1_400)] * 20)
                for peer in peers[1::2]:
                    with contextlib.suppress(ConnectionError):
                        for _ in range(40):
                            await _ice_of(peer).send(data)
                most = max(most, target.rss_mib() - before)
        if most > MAX_HELD_MIB:
            raise Broken(f"{len(peers)} half-open peers hold {most:.0f} MiB")
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))
        async with httpx.AsyncClient(base_url=target.url, headers=target.headers) as client:
            for peer in peers:
                await client.delete(f"/v1/rtc/{peer.session_id}")
    return f"{stranger.sent} datagrams of 1.4 KB to {len(peers)} peers, which held {most:.0f} MiB"


# ---------------------------------------------------------------- peers with a key


class Sctp:
    """Sends SCTP packets of any shape over a connection."""

    def __init__(self, peer: RtcPeer) -> None:
        self.peer = peer
        found = peer.connection.sctp
        assert found is not None
        self.transport: RTCSctpTransport = found
        self.stream = peer.channel.id or 0
        self.seq = self.transport._outbound_stream_seq.get(self.stream, 0)

    @property
    def gone(self) -> bool:
        """Whether the node has closed the connection."""
        return self.peer.connection.connectionState != "connected" or self.peer.channel.readyState != "open"

    def data(self, payload: bytes, flags: int, *, ahead: int = 1) -> bytes:
        """The next chunk of data; `ahead` of 2 leaves one out."""
        tsn = (self.transport._local_tsn + ahead - 1) % 2**32
        self.transport._local_tsn = (tsn + 1) % 2**32
        return chunk(0, pack("!LHHL", tsn, self.stream, self.seq, 51) + payload, flags)

    async def send(self, *chunks: bytes) -> None:
        """Send a packet, and let others work."""
        transport = self.transport
        head = pack("!HHL", transport._local_port, transport._remote_port, transport._remote_verification_tag)
        body = b"".join(chunks)
        with contextlib.suppress(ConnectionError):
            await transport.transport._send_data(head + pack("<L", crc32c(head + bytes(4) + body)) + body)
        await asyncio.sleep(0)


def chunk(kind: int, body: bytes, flags: int = 0) -> bytes:
    """One SCTP chunk."""
    return pack("!BBH", kind, flags, 4 + len(body)) + body + bytes(-len(body) % 4)


async def fragments(sctp: Sctp, until: float) -> None:
    """A message without an end, in fragments of a few bytes."""
    await sctp.send(sctp.data(FRAGMENT, 2))
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(*(sctp.data(FRAGMENT, 0) for _ in range(50)))


async def unordered(sctp: Sctp, until: float) -> None:
    """The ends of messages without a beginning."""
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(*(sctp.data(FRAGMENT, 4) for _ in range(50)))


async def missing(sctp: Sctp, until: float) -> None:
    """All of a message but one TSN, for ever."""
    await sctp.send(sctp.data(FRAGMENT, 3, ahead=2))
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(*(sctp.data(FRAGMENT, 3) for _ in range(50)))


async def holes(sctp: Sctp, until: float) -> None:
    """Every other TSN."""
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(*(sctp.data(FRAGMENT, 3, ahead=2) for _ in range(50)))


async def streams(sctp: Sctp, until: float) -> None:
    """Fragments on as many streams as there are."""
    for sctp.stream in range(65_535):
        if time.monotonic() > until or sctp.gone:
            break
        await sctp.send(*(sctp.data(FRAGMENT, 2) for _ in range(2)))


async def acknowledgements(sctp: Sctp, until: float) -> None:
    """SACKs of chunks that were never sent: each has 22 million."""
    received = sctp.transport._last_received_tsn or 0
    body = pack("!LLHH", received, 100_000, 340, 0) + pack("!HH", 1, 65_535) * 340
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(chunk(3, body))


async def heartbeats(sctp: Sctp, until: float) -> None:
    """As many requests for an answer as a packet holds."""
    while time.monotonic() < until and not sctp.gone:
        await sctp.send(*(chunk(4, b"") for _ in range(300)))


async def empty_parameter(sctp: Sctp, until: float) -> None:
    """A parameter that says it has no bytes, not even its own head."""
    await sctp.send(chunk(4, bytes(4)))


async def resets(sctp: Sctp, until: float) -> None:
    """Requests to reset streams, each of which is answered."""
    for number in itertools.count():
        if time.monotonic() > until or sctp.gone:
            break
        requests = (pack("!HHLLLH", 13, 18, number * 50 + each, 0, 0, 9) + b"\0\0" for each in range(50))
        await sctp.send(chunk(130, b"".join(requests)))


async def forwards(sctp: Sctp, until: float) -> None:
    """FORWARD TSNs that name hundreds of streams."""
    for start in itertools.cycle(range(0, 65_000, 300)):
        if time.monotonic() > until or sctp.gone:
            break
        sctp.transport._local_tsn = (sctp.transport._local_tsn + 1) % 2**32
        names = b"".join(pack("!HH", each, 0) for each in range(start, start + 300))
        await sctp.send(chunk(192, pack("!L", sctp.transport._local_tsn) + names))


async def nacks(sctp: Sctp, until: float) -> None:
    """Requests to send the last 17 packets of audio again, 4 800 of them in a datagram."""
    dtls = sctp.transport.transport
    last: list[RtpPacket] = []
    handle = dtls._handle_rtp_data

    async def see(data: bytes, arrival_time_ms: int) -> None:
        last[:] = [RtpPacket.parse(data)]
        await handle(data, arrival_time_ms)

    dtls._handle_rtp_data = see
    await sctp.peer.wait(lambda: last)
    while time.monotonic() < until and not sctp.gone:
        lost = pack("!HH", (last[0].sequence_number - 16) % 65_536, 65_535) * 290
        with contextlib.suppress(ConnectionError):
            await dtls._send_rtp(pack("!BBHLL", 129, 205, 2 + 290, 1, last[0].ssrc) + lost)
        await asyncio.sleep(0)


async def messages(sctp: Sctp, until: float) -> None:
    """Small messages of the protocol, as many as fit."""
    while time.monotonic() < until and not sctp.gone:
        for _ in range(50):
            sctp.seq = (sctp.seq + 1) % 65_536
            await sctp.send(*(sctp.data(b"{}", 7) for _ in range(40)))


WAYS: tuple[Callable[[Sctp, float], Awaitable[None]], ...] = (
    *(fragments, unordered, missing, holes, streams, acknowledgements, heartbeats, empty_parameter, resets, forwards),
    *(nacks, messages),
)


@attack("SCTP and RTCP that no library sends")
async def hostile_peers(target: Target) -> str:
    ended: list[str] = []

    async def come(way: Callable[[Sctp, float], Awaitable[None]]) -> None:
        async with connected(target.url, target.headers) as peer:
            sctp = Sctp(peer)
            await way(sctp, time.monotonic() + target.scaled(15, 0.3))
            await asyncio.sleep(0.6)  # the node looks at its peers twice a second
            ended.extend([way.__name__] if sctp.gone else [])

    async with _listening(target) as bystander:
        for start in range(0, len(WAYS), AT_ONCE):
            await asyncio.gather(*map(come, WAYS[start : start + AT_ONCE]))
        await _still_hears(bystander)
    return f"{len(WAYS)} kinds; ended: {', '.join(ended)}"


@attack("candidates for the agent", node=agent_node, settings=CALLS)
async def candidates(target: Target) -> str:
    """Thousands, to other ports than there are."""
    peer = RtcPeer()
    asked = 0
    line = "candidate:{} 1 udp 2130706431 192.0.2.{} {} typ host"
    try:
        async with httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=20) as client:
            reply = await client.post("/api/agent/offer", json={"sdp": await peer.offer(), "type": "offer"})
            pc_id = reply.json()["pc_id"]

            async def patch(*lines: str) -> int:
                body = {"pc_id": pc_id, "candidates": [{"candidate": each, "sdp_mid": "0"} for each in lines]}
                return (await client.patch("/api/agent/offer", json=body)).status_code

            until = time.monotonic() + target.scaled(10, 0.5)
            for port in (99_999, 0, 65_536):
                if await patch(line.format(1, 1, port)) != 400:
                    raise Broken(f"port {port} was taken")
            taken = 0
            while time.monotonic() < until:
                many = [line.format(each % 64, each % 250 + 1, each % 60_000 + 1) for each in range(asked, asked + 60)]
                taken += 60 * (await patch(*many) == 204)
                asked += 60
            if taken > 64:
                raise Broken(f"{taken} candidates were taken")
    finally:
        await peer.close()
    return f"{taken} of {asked} candidates taken"


# ---------------------------------------------------------------- helpers


async def _offer(target: Target, peer: RtcPeer, key: str) -> dict[str, str]:
    """The node's answer to an offer of a peer."""
    async with httpx.AsyncClient(base_url=target.url, headers={"Authorization": f"Bearer {key}"}) as client:
        reply = await client.post("/v1/rtc/offer", json={"sdp": await peer.offer(), "type": "offer"})
    reply.raise_for_status()
    answer: dict[str, str] = reply.json()
    return answer


def _ports(sdp: str) -> list[Address]:
    """The addresses of a description."""
    found = re.findall(r"a=candidate:\S+ 1 udp \d+ ([\d.]+) (\d+) typ host", sdp)
    return sorted({(host, int(port)) for host, port in found})


def _ice_of(peer: RtcPeer) -> Any:
    assert peer.connection.sctp is not None
    return peer.connection.sctp.transport.transport._connection


async def _only_ice(peer: RtcPeer, answer: dict[str, str]) -> None:
    """Connect a peer as far as ICE goes."""

    async def never(_: object) -> None:
        pass

    dtls = peer.connection.getTransceivers()[0].receiver.transport
    dtls.start = never  # pyrefly: ignore[bad-assignment]
    await peer.accept(answer)
    async with asyncio.timeout(10):
        while dtls.transport.state != "completed":
            await asyncio.sleep(0.01)


@asynccontextmanager
async def _listening(target: Target) -> AsyncIterator[RtcPeer]:
    """A third client that hears speech over WebRTC."""
    async with connected(target.url, {"Authorization": f"Bearer {target.other_key}"}) as peer:
        async with background(_ping(peer), "pings"):
            peer.say("t1", TEXT * 10, voice="tone-440")
            await peer.wait(peer.loud)
            yield peer


async def _ping(peer: RtcPeer) -> None:
    while peer.channel.readyState == "open":
        peer.send("ping", t=1)
        await asyncio.sleep(1)


async def _still_hears(peer: RtcPeer) -> None:
    """Raises Broken if no more audio arrives."""
    peer.frames.clear()
    try:
        await peer.wait(lambda: len(peer.frames) >= 50, 5)
        peer.send("ping", t=2)
        await peer.message("pong", t=2)
    except (TimeoutError, InvalidStateError) as error:
        raise Broken(f"a bystander lost its session: {type(error).__name__}") from None
