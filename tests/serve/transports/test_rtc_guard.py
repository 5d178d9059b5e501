from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from aioice import Candidate, stun
from aioice.ice import CandidatePair, StunProtocol
from aiortc import RTCPeerConnection
from aiortc.rtcsctptransport import Chunk
from aiortc.rtp import RtpPacket

from agent_tts.serve.access.fair_queue import FairQueue, Flow
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.serve.transports import datagrams, rtc_guard
from agent_tts.serve.transports.rtc_guard import (
    AUDIO_BURST_S,
    MAX_ADDRESSES,
    MAX_CONFLICTS,
    MAX_SOURCES,
    MAX_WAITING,
    DatagramQueue,
    Gatherer,
    PeerGuard,
    PeerSocket,
)
from agent_tts.serve.transports.rtc_peer import RtcPeer as NodePeer
from tests.rtc_peer import RtcPeer, connected
from tests.support import RunningNode, ended, running_node, uncollected, until

pytestmark = pytest.mark.node

LONG = "a long story of many words that goes on and on " * 20
CIPHERED = b"\x17\xfe\xfd\0\1\0\0\0\0\0\1\x05\x00" + bytes(1_280)


def flow() -> Flow:
    return Flow(FairQueue().share(None))


def ports(sdp: str) -> list[tuple[str, int]]:
    return [
        (host, int(port)) for host, port in re.findall(r"candidate:\S+ 1 udp \d+ ([\d.]+) (\d+) typ host", sdp, re.I)
    ]


def dropped(node: RunningNode, reason: str) -> float:
    return node.node.metrics.registry.get_sample_value("agent_tts_rtc_dropped_total", {"reason": reason}) or 0.0


def send(to: list[tuple[str, int]], *datagrams: bytes) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as stranger:
        for datagram in datagrams:
            for address in to:
                stranger.sendto(datagram, address)


@asynccontextmanager
async def half_open(node: RunningNode, *, ice: bool) -> AsyncIterator[tuple[RtcPeer, Any, list[tuple[str, int]]]]:
    """A peer that has got its answer and, if `ice`, has connected as far as ICE goes; and the node's side of it."""
    async with RtcPeer() as peer:
        async with node.http() as client:
            reply = (await client.post("/v1/rtc/offer", json={"sdp": await peer.offer(), "type": "offer"})).json()
        if ice:
            dtls = peer.connection.getTransceivers()[0].receiver.transport
            dtls.start = lambda _: asyncio.sleep(0)  # pyrefly: ignore[bad-assignment]
            await peer.accept(reply)
            await until(lambda: dtls.transport.state == "completed")
            await asyncio.sleep(0.1)  # for aiortc's task that connects
        yield peer, node.node.peers[reply["session_id"]], ports(reply["sdp"])


# ---------------------------------------------------------------- strangers


async def test_datagrams_of_strangers_change_nothing_and_are_counted(node: RunningNode, peer: RtcPeer) -> None:
    junk = {"format": [b"", b"\x16", b"\x16" * 1_501], "stun": [], "source": [CIPHERED, b"\x80" + bytes(90)]}
    junk["format"] += [b"\x10" * 50, b"\0\1\0\0" + b"x" * 16]
    junk["stun"] += [b"\0\1\0\0" + bytes.fromhex("2112a442") + b"x" * 12, b"\1\1\0\0" + bytes.fromhex("2112a442") * 4]
    there: Any = next(iter(node.node.peers.values()))
    to = ports(there._peer.connection.localDescription.sdp)
    for reason, each in junk.items():
        send(to, *each)
        await until(lambda: dropped(node, reason) >= len(each) * len(to))  # noqa: B023
    peer.say("t1", "hello")
    await peer.message("context.done")
    assert node.node.peers


async def test_records_in_the_name_of_a_connected_peer_do_not_end_its_session(node: RunningNode, peer: RtcPeer) -> None:
    """The source of a datagram can be forged. OpenSSL drops what is not encrypted now."""
    hello = b"\1\0\0\x40\0\0\0\0\0\0\0\x40" + bytes(64)
    done = b"\x0e\0\0\0\0\5\0\0\0\0\0\0"
    send_one = peer.connection.getTransceivers()[0].receiver.transport.transport._send
    for body in (hello, done, b"\0" + bytes(11), b"\x10\0\0\4\0\2\0\0\0\0\0\4abcd"):
        await send_one(b"\x16\xfe\xfd" + bytes(8) + len(body).to_bytes(2) + body)
    for alert in (b"\x15\xfe\xfd" + bytes(9) + b"\2\2\x28", b"\x15\xfe\xfd\0\1" + bytes(6) + b"\0\x1a" + bytes(26)):
        await send_one(alert)
    await send_one(b"\x14\xfe\xfd" + bytes(9) + b"\1\1")
    for _ in range(3):
        peer.send("ping", t=1)
        await peer.message("pong")
        await asyncio.sleep(0.1)
    assert node.node.peers


async def test_a_check_with_a_wrong_password_is_not_answered(node: RunningNode) -> None:
    """Nor one that breaks the parser."""
    async with connected(node.url):
        there: Any = next(iter(node.node.peers.values()))
        ice: Any = there._peer._sender.transport.transport._connection
        check = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        check.attributes |= {"USERNAME": f"{ice.local_username}:{ice.remote_username}", "PRIORITY": 1}
        unsigned = bytes(check)
        check.add_message_integrity(b"not the password")
        (host, port), *_ = ports(there._peer.connection.localDescription.sdp)
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as stranger:
            stranger.setblocking(False)
            broken = unsigned[:2] + (len(unsigned) - 16).to_bytes(2) + unsigned[4:] + b"\x80\x28\0\0"
            for datagram in (bytes(check), unsigned, broken):
                stranger.sendto(datagram, (host, port))
            await until(lambda: dropped(node, "stun") == 3)
            with pytest.raises(BlockingIOError):
                stranger.recv(1_500)
        assert len(ice.remote_candidates) < 5


async def test_nothing_waits_for_a_peer_that_has_answered_no_check() -> None:
    async with running_node() as node, half_open(node, ice=False) as (_, there, to):
        send(to, *[CIPHERED] * 300)
        await until(lambda: dropped(node, "source") > 100)
        assert there._peer.guard._inbox.qsize() == 0


async def test_a_bounded_number_waits_for_a_peer_that_does_not_end_its_handshake() -> None:
    async with running_node() as node, half_open(node, ice=True) as (peer, there, _):
        send_one = peer.connection.getTransceivers()[0].receiver.transport.transport._send
        there._peer.guard._inbox.work.take(there._peer.guard._inbox.clock(), 1_000_000)  # aiortc has its hands full
        for _ in range(2 * MAX_WAITING):
            await send_one(CIPHERED)
            await asyncio.sleep(0)
        await until(lambda: dropped(node, "full") > MAX_WAITING // 2)
        assert there._peer.guard._inbox.qsize() == MAX_WAITING


async def test_a_peer_may_send_from_a_bounded_number_of_addresses() -> None:
    """Each new one costs a candidate and seven checks. Mutation: no `MAX_ADDRESSES`."""
    received: list[object] = []

    class Ice:
        local_username, local_password, remote_password = "abcd", "p" * 22, "q" * 22
        data_received = request_received = lambda _, *given: received.append(given)

    drops: list[str] = []
    sock = PeerSocket(Ice(), Gatherer(Ice(), DatagramQueue(flow()), drops.append))  # pyrefly: ignore[bad-argument-type]
    for port in range(2 * MAX_ADDRESSES):
        check = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        check.attributes |= {"USERNAME": "abcd:efgh", "PRIORITY": 1}
        check.add_message_integrity(b"p" * 22)
        sock.datagram_received(bytes(check), ("192.0.2.1", port))
    assert (len(received), drops) == (MAX_ADDRESSES, ["stun"] * MAX_ADDRESSES)
    sock.datagram_received(bytes(check), ("192.0.2.1", 0))  # pyrefly: ignore[unbound-name]
    assert len(received) == MAX_ADDRESSES + 1


async def test_checks_of_a_peer_have_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtc_guard, "CHECKS_BURST", 3)
    async with running_node() as node, connected(node.url) as peer:
        ice: Any = peer.connection.getTransceivers()[0].receiver.transport.transport._connection
        (pair,) = ice._nominated.values()
        for _ in range(200):
            request = ice.build_request(pair, nominate=False)
            request.add_message_integrity(ice.remote_password.encode())
            pair.protocol.send_stun(request, pair.remote_addr)
        await until(lambda: dropped(node, "stun") > 100)
        await asyncio.sleep(0.1)
        peer.send("ping", t=1)
        await peer.message("pong")


# ---------------------------------------------------------------- candidates


class StunServer(asyncio.DatagramProtocol):
    """Tells everybody that they come from 192.0.2.9:4242."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = stun.parse_message(data)
        answer = stun.Message(asked.message_method, stun.Class.RESPONSE, asked.transaction_id)
        answer.attributes["XOR-MAPPED-ADDRESS"] = ("192.0.2.9", 4242)
        self.transport.sendto(bytes(answer), addr)


async def test_an_answer_has_the_address_that_a_stun_server_sees() -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(StunServer, local_addr=("127.0.0.1", 0))
    try:
        server = f"stun:127.0.0.1:{transport.get_extra_info('sockname')[1]}"
        async with running_node(ice_servers=[{"urls": [server]}]) as node:
            async with half_open(node, ice=True) as (_, there, _):
                assert re.search(r"192\.0\.2\.9 4242 typ srflx", there._peer.connection.localDescription.sdp)
    finally:
        transport.close()


async def test_an_answer_has_the_address_at_a_turn_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its datagrams go through our socket as those of a socket do."""
    asked: dict[str, Any] = {}

    async def relay(*, protocol_factory: Callable[[], PeerSocket], **given: Any) -> tuple[Candidate, PeerSocket]:
        asked.update(given)
        sock = protocol_factory()
        sock.local_candidate = Candidate("r", 1, "udp", 1, "192.0.2.9", 4242, "relay")
        sock.transport = Mock(close=lambda: sock.connection_lost(None))
        return sock.local_candidate, sock

    monkeypatch.setattr(rtc_guard, "relayed_candidate", relay)
    servers = [{"urls": ["turn:192.0.2.8:3479?transport=tcp"], "username": "me", "credential": "secret"}]
    async with running_node(ice_servers=servers) as node, half_open(node, ice=True) as (_, there, _):
        assert "192.0.2.9 4242 typ relay" in there._peer.connection.localDescription.sdp
    assert asked["turn_server"] == ("192.0.2.8", 3479)
    assert (asked["turn_username"], asked["turn_password"]) == ("me", "secret")
    assert (asked["turn_transport"], asked["turn_ssl"], asked["component"]) == ("tcp", False, 1)


# ---------------------------------------------------------------- peers


async def test_records_of_one_datagram_all_arrive(peer: RtcPeer) -> None:
    """aiortc reads one record of a datagram: it would answer the second of two pings when a third comes."""
    transport: Any = peer.connection.getTransceivers()[0].receiver.transport.transport
    send, held = transport._send, [b""]

    async def hold(data: bytes) -> None:
        held[0] += data

    transport._send = hold
    peer.send("ping", t=1)
    await asyncio.sleep(0.05)
    peer.send("ping", t=2)
    await asyncio.sleep(0.05)
    transport._send = send
    assert len(held[0]) < 1_000
    await send(held[0])
    await peer.message("pong", t=2)


async def test_a_client_whose_address_changes_is_heard_again(node: RunningNode, peer: RtcPeer) -> None:
    """A NAT has given it another port: its next connectivity check comes from there, and then its data."""
    ice: Any = peer.connection.sctp.transport.transport._connection  # pyrefly: ignore[missing-attribute]
    before = ice._nominated[1]
    _, moved = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: StunProtocol(ice), local_addr=(before.local_candidate.host, 0)
    )
    moved.local_candidate = before.local_candidate
    ice._protocols.append(moved)
    pair = CandidatePair(moved, before.remote_candidate)
    ice._check_list.append(pair)
    await ice.check_start(pair)
    assert ice._nominated[1] is pair
    ice._protocols.remove(before.protocol)
    await before.protocol.close()
    peer.send("ping", t=1)
    await peer.message("pong")
    peer.frames.clear()
    await peer.wait(lambda: len(peer.frames) > 5)
    assert node.node.peers


async def test_a_flood_slows_only_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtc_guard, "WORK_PER_S", 100)
    monkeypatch.setattr(rtc_guard, "WORK_BURST", 100)
    async with running_node() as node, connected(node.url) as hostile, connected(node.url) as other:
        other.say("t1", LONG[:40], voice="tone-440")
        for number in range(400):
            hostile.send("ping", t=number)
        done = await other.message("context.done")
        assert done["reason"] == "end"
        assert hostile.arrival("pong", t=0)
        assert [message["t"] for _, message in hostile.messages if message["type"] == "pong"][-1] < 399
        assert len(node.node.peers) == 2


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (4, bytes(4)),  # aiortc reads a parameter without a length for ever
        (0, b"\0\0\0\0"),
        (130, b"\0\x0d\0\x07abc"),  # aiortc's parser asserts and unpacks
    ],
)
async def test_sctp_that_no_library_sends_ends_its_peer(
    node: RunningNode, peer: RtcPeer, other: RtcPeer, kind: int, body: bytes
) -> None:
    sctp: Any = peer.connection.sctp
    chunk = Chunk(body=body)
    chunk.type = kind
    await sctp._send_chunk(chunk)
    await until(lambda: len(node.node.peers) == 1)
    assert other.session_id in node.node.peers


async def test_a_microphone_has_a_rate() -> None:
    """aiortc decodes whatever comes, also 120 ms of audio in a packet of 14 bytes."""
    handled: list[bytes] = []

    async def handle(packet: RtpPacket, arrival_time_ms: int) -> None:
        handled.append(packet.payload)

    metrics = Metrics()
    guard = PeerGuard(RTCPeerConnection(), metrics, flow(), 65_536)
    take = guard._checked(guard._microphone(), "audio", handle)

    async def taken(payload: bytes, count: int) -> int:
        handled.clear()
        for _ in range(count):
            await take(RtpPacket(payload=payload), arrival_time_ms=0)
        return len(handled)

    assert await taken(b"", 1) == await taken(b"\xfb", 1) == 0  # aiortc's decoder would end at the first
    assert await taken(b"\xfb\x06" + b"\xff\xfe" * 6, 1_000) == int(AUDIO_BURST_S / 0.12)
    await asyncio.sleep(10)
    assert await taken(b"\xf8\xff\xfe", 1_000) == pytest.approx(AUDIO_BURST_S / 0.02, abs=2)
    for _ in range(500):
        await asyncio.sleep(0.02)
        assert await taken(b"\xf8\xff\xfe", 1) == 1
    assert metrics.registry.get_sample_value("agent_tts_rtc_dropped_total", {"reason": "audio"})


async def test_a_microphone_is_heard_at_once_also_after_a_lost_packet(node: RunningNode, peer: RtcPeer) -> None:
    """Packets until one is decoded. Mutation: `receive_at_once` does nothing."""
    del peer
    there: Any = next(iter(node.node.peers.values()))
    receiver = there._peer.connection.getTransceivers()[0].receiver
    jitter = receiver._RTCRtpReceiver__jitter_buffer
    behind = []
    for number in (*range(10), *range(11, 30)):  # the eleventh is lost
        packet: Any = RtpPacket(sequence_number=number, timestamp=960 * number)
        packet._data = b"\xf8\xff\xfe"
        _, frame = jitter.add(packet)
        behind.append(None if frame is None else number - frame.timestamp // 960)
    assert behind[:10] == [None, *[1] * 9]
    assert max(filter(None, behind[14:])) <= 3
    assert None not in behind[14:]


@pytest.mark.parametrize("kind", ["rtp", "rtcp"])
async def test_a_peer_has_few_sources(node: RunningNode, peer: RtcPeer, kind: str) -> None:
    """libsrtp keeps half a kilobyte for each, and searches them all for each packet; so does aiortc."""
    dtls: Any = peer.connection.sctp.transport  # pyrefly: ignore[missing-attribute]
    there: Any = next(iter(node.node.peers.values()))
    inbox = there._peer.guard._inbox
    for number in range(20):
        head = b"\x80\xc9\0\1" if kind == "rtcp" else b"\x80\x60\0\1" + bytes(4)
        await dtls._send_rtp(head + number.to_bytes(4) + (b"" if kind == "rtcp" else b"\xf8\xff\xfe"))
        await asyncio.sleep(0.01)
    await until(lambda: dropped(node, "audio") >= 20 - MAX_SOURCES)
    assert len(inbox._sources) == MAX_SOURCES
    peer.send("ping", t=1)
    await peer.message("pong")


async def test_rtcp_that_aiortc_cannot_read_ends_its_peer(node: RunningNode, peer: RtcPeer, other: RtcPeer) -> None:
    """It would end aiortc's task with a traceback in the log."""
    dtls: Any = peer.connection.sctp.transport  # pyrefly: ignore[missing-attribute]
    bandwidth = b"REMB\xc8\0\0\1"  # says that 200 sources follow
    await dtls._send_rtp(b"\x8f\xce\0\4" + bytes(8) + bandwidth)
    there: Any = node.node.peers[peer.session_id]
    await until(lambda: there._peer.guard.fault is not None)
    await until(lambda: len(node.node.peers) == 1)
    assert other.session_id in node.node.peers


async def test_rtcp_costs_work_by_its_length(node: RunningNode, peer: RtcPeer) -> None:
    dtls: Any = peer.connection.sctp.transport  # pyrefly: ignore[missing-attribute]
    there: Any = next(iter(node.node.peers.values()))
    work = there._peer.guard._inbox.work
    work._rate = 1e-9  # nothing comes back while the machine is busy
    left = work._left
    await dtls._send_rtp(b"\x80\xc9\0\1\0\0\0\1" * 150)
    await until(lambda: work._left < left - 15)


async def test_messages_are_not_lost_on_a_channel_that_may_lose_them(node: RunningNode, peer: RtcPeer) -> None:
    """aiortc compares each message that may be lost with each, when none of them is acknowledged in time."""
    there: Any = next(iter(node.node.peers.values()))
    sctp = there._peer.connection.sctp
    channel: Any = there._peer.channel
    channel._RTCDataChannel__parameters.maxRetransmits = 0
    channel._RTCDataChannel__parameters.ordered = False
    peer.connection.sctp._send_sack = lambda: asyncio.sleep(0)  # pyrefly: ignore[missing-attribute]
    peer.send("ping", t=1)
    await peer.message("pong")
    assert [(chunk._max_retransmits, chunk.flags) for chunk in sctp._sent_queue] == [(None, 3)]


async def test_a_peer_that_reads_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an agent's messages nobody else counts the bytes."""
    monkeypatch.setattr(datagrams, "MAX_UNREAD", 100)
    async with running_node() as node, connected(node.url) as hostile:
        hostile.connection.sctp._send_sack = lambda: asyncio.sleep(0)  # pyrefly: ignore[missing-attribute]
        for number in range(150):
            hostile.send("ping", t=number)
        await until(lambda: not node.node.peers, 3)


async def test_a_peer_disputes_its_role_a_bounded_number_of_times() -> None:
    """aioice repeats a check from within itself, at once: 1 000 times, and 3 000 a second."""
    async with running_node() as node, RtcPeer() as peer:
        offer = await peer.offer()
        ice: Any = peer.connection.getTransceivers()[0].receiver.transport.transport._connection
        asked = 0

        def dispute(message: stun.Message, address: tuple[str, int], protocol: Any) -> None:
            nonlocal asked
            asked += 1
            ice.respond_error(message, address, protocol, (487, "Role Conflict"))

        ice.request_received = dispute
        async with node.http() as client:
            await client.post("/v1/rtc/offer", json={"sdp": offer, "type": "offer"})
        await until(lambda: dropped(node, "stun") > 0)
        assert asked <= MAX_CONFLICTS + 20


# ---------------------------------------------------------------- memory


async def full(node: RunningNode) -> None:
    async with connected(node.url) as peer:
        peer.say("t1", "hello")
        await peer.message("context.done")


async def half(node: RunningNode) -> None:
    async with half_open(node, ice=False):
        pass


@pytest.mark.parametrize("come", [full, half])
async def test_a_peer_leaves_nothing_even_without_the_garbage_collector(
    come: Callable[[RunningNode], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: without any of `PeerGuard._ties` it stays until a full collection, with all that waits for it."""
    made: list[weakref.ref[object]] = []
    init = NodePeer.__init__

    def see(self: NodePeer, *given: Any) -> None:
        init(self, *given)
        peer = self._peer
        ice = peer._sender.transport.transport._connection
        made.extend(map(weakref.ref, (peer.connection, peer._sender, ice, peer.guard, peer.guard._inbox)))

    monkeypatch.setattr(NodePeer, "__init__", see)
    async with running_node(timeouts={"handshake_s": 0.2}) as node:
        with uncollected():
            await come(node)
            await until(lambda: not node.node.peers)
            await until(lambda: not any(ref() for ref in made), 1)
        assert len(made) == 5


async def test_a_peer_that_is_closed_while_it_connects_leaves_no_task(node: RunningNode) -> None:
    """aioice would ask for consent for ever, and tell a failure that nobody retrieves."""
    async with node.http() as client, RtcPeer() as peer:
        offer = {"sdp": await peer.offer(), "type": "offer"}
        answer = (await client.post("/v1/rtc/offer", json=offer)).json()
        there: Any = node.node.peers[answer["session_id"]]
        ice: Any = there._peer._sender.transport.transport._connection
        await peer.accept(answer)
        await until(lambda: ice._check_list_done, 5)
        (connecting,) = there._peer.guard._connecting
        assert not connecting.done()
        await there.close()
        assert connecting.cancelled()
        assert ice._query_consent_task is None
        await until(lambda: peer.connection.iceConnectionState in ("completed", "failed"), 5)


async def test_what_waits_for_a_peer_goes_with_it() -> None:
    """Of a peer that ends in its handshake a traceback keeps some objects until the garbage collector runs."""
    async with running_node(timeouts={"handshake_s": 0.2}) as node:
        async with half_open(node, ice=True) as (peer, there, _):
            inbox = there._peer.guard._inbox
            inbox.work.take(inbox.clock(), 1_000_000)
            for _ in range(50):
                await peer.connection.getTransceivers()[0].receiver.transport.transport._send(CIPHERED)
            await until(lambda: inbox.qsize() > 10)
        await until(lambda: not node.node.peers)
        assert inbox.empty()


async def test_messages_that_cost_more_are_counted_by_their_length(node: RunningNode, peer: RtcPeer) -> None:
    there: Any = next(iter(node.node.peers.values()))
    work = there._peer.guard._inbox.work
    there._peer.guard._work_per_byte = 64 / 1_024
    work._rate = 1e-9
    left = work._left
    peer.send("ping", t=1, of_a_later_version="x" * 8_000)
    await peer.message("pong")
    assert 500 < left - work._left < 600


async def test_a_datagram_waits_for_a_turn_of_the_loop_and_is_not_lost_by_cancelling() -> None:
    """Many peers of one key share what the key has. Mutation: without the flow each has its own rate."""
    queue = FairQueue(clock=lambda: 1.0)
    inbox = DatagramQueue(Flow(queue.share("many")))
    queue._began, queue._is_due = 0.0, True  # others have used this pass of the loop
    inbox.put_nowait((b"first", 1))
    inbox.put_nowait((b"second", 1))
    reader = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not reader.done()
    await ended(reader)
    queue._pass()
    assert [await inbox.get(), await inbox.get()] == [(b"first", 1), (b"second", 1)]
