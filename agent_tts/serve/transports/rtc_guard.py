"""What stands between the network and aiortc, which trusts every datagram and works off all it has at once.

A peer's sockets are ours (`Door`). Data passes from an address that has answered a connectivity check with the peer's
password, and waits in a bounded queue, from which aiortc takes no more than a share of the event loop (`Inbox`). What a
peer sends on its data channels passes only where aiortc's work and memory for it are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from socket import SO_RCVBUF, SOL_SOCKET
from struct import error as StructError
from typing import Any

from aioice import Candidate, Connection, stun
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import StunProtocol, relayed_candidate, server_reflexive_candidate
from aiortc import RTCPeerConnection, RTCSctpTransport
from aiortc.rtp import AnyRtcpPacket, RtcpRtpfbPacket
from loguru import logger

from agent_tts.serve.guard import TokenBucket
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.serve.transports.datagrams import Hostile, dtls_records, kind_of, sctp_work

GATHER_S = 1  # for answers of STUN and TURN servers, during which the client waits for its answer
LOOPBACK = "127.0.0.1"  # for a machine without a network

# Datagrams that wait for aiortc. A burst of a data channel is a congestion window long; SCTP repeats what is dropped.
MAX_WAITING = 512

# What one peer may have aiortc do: datagrams, or as much work. A caller's microphone sends 50 datagrams a second, and
# each message of the data channel, and each acknowledgement of one, is one more.
WORK_PER_S = 1_000
WORK_BURST = 2_000

# Packets of a microphone: 50 a second, 100 at most, and more for a moment after the network has stood.
AUDIO_PER_S = 120
AUDIO_BURST = 600
MAX_SOURCES = 8

# Connectivity checks of a peer: some a second for each pair of candidates, later one in 2.5 s.
CHECKS_PER_S = 100
CHECKS_BURST = 300
MAX_ADDRESSES = 64  # from which a peer may send; its network gives it some

RECEIVE_BUFFER = 262_144  # bytes of a socket

Address = tuple[str, int]


class PeerGuard:
    """Guards one connection, from its first offer on.

    Args:
        connection: has gathered no candidates yet.
        max_message: bytes of the longest message that the peer may send on a data channel.
    """

    def __init__(self, connection: RTCPeerConnection, metrics: Metrics, max_message: int) -> None:
        # Why the peer must be closed, or None. None of its SCTP packets is handled then.
        self.fault: str | None = None
        self._metrics = metrics
        self._max_message = max_message
        self._inbox = Inbox()
        # Takes apart what would keep a closed connection in memory until the garbage collector's next full run.
        self._ties = contextlib.ExitStack()
        connection.on("signalingstatechange", lambda: self._on_signaling(connection))

    def close(self) -> None:
        """Drop what waits, and let the connection go. For one that is closed."""
        self._inbox.clear()
        self._ties.close()

    def drop(self, reason: str) -> None:
        """Count a datagram that is not handled."""
        self._metrics.rtc_dropped.labels(reason).inc()

    def _on_signaling(self, connection: RTCPeerConnection) -> None:
        """Stand before the transports, which the offer has made. None has a socket yet."""
        if connection.signalingState != "have-remote-offer":
            return
        sctp = connection.sctp
        assert sctp is not None, "an offer has a data channel"
        transport = sctp.transport  # of all sections: they are bundled
        ice = transport.transport.iceGatherer._connection
        ice._queue = self._inbox
        self._replace(ice, "get_component_candidates", Gatherer(ice, self._inbox, self.drop).gather)
        self._replace(transport, "_handle_rtp_data", self._rtp_handler(transport._handle_rtp_data))
        self._replace(sctp, "_handle_data", self._sctp_handler(sctp))
        for transceiver in connection.getTransceivers():
            sender = transceiver.sender
            self._replace(sender, "_handle_rtcp_packet", _rtcp_handler(sender._handle_rtcp_packet))
        self._ties.callback(transport.remove_all_listeners)
        self._ties.callback(_forget_checks, ice)

    def _replace(self, owner: object, method: str, ours: object) -> None:
        """Stand before a method of one object until the guard closes."""
        setattr(owner, method, ours)
        self._ties.callback(delattr, owner, method)

    def _sctp_handler(self, sctp: RTCSctpTransport) -> Callable[[bytes], Awaitable[None]]:
        handle = sctp._handle_data

        async def handle_sane(data: bytes) -> None:
            if self.fault is not None:
                return
            try:
                work = sctp_work(data, sctp, self._max_message)
                if work is None:
                    self.drop("sctp")
                    return
                self._inbox.work.take(self._inbox.clock(), work - 1)
                await handle(data)
            except ConnectionError:
                raise
            except Hostile as found:
                self.fault = str(found)
            except Exception as error:  # noqa: BLE001 - aiortc asserts and unpacks what the peer sends
                logger.opt(exception=error).debug("an SCTP packet cannot be handled")
                self.fault = f"an SCTP packet cannot be handled: {type(error).__name__}"

        return handle_sane

    def _rtp_handler(self, handle: Callable[[bytes, int], Awaitable[None]]) -> Callable[[bytes, int], Awaitable[None]]:
        """Bounds what a microphone sends: aiortc decodes all of it, and remembers each source for ever."""
        allowed = TokenBucket(AUDIO_PER_S, AUDIO_BURST, self._inbox.clock())
        sources: set[bytes] = set()

        async def handle_sane(data: bytes, arrival_time_ms: int) -> None:
            source = data[8:12]
            if len(sources) < MAX_SOURCES:
                sources.add(source)
            if source in sources and allowed.allows(self._inbox.clock()):
                await handle(data, arrival_time_ms)
            else:
                self.drop("audio")

        return handle_sane


def _rtcp_handler(handle: Callable[[AnyRtcpPacket], Awaitable[None]]) -> Callable[[AnyRtcpPacket], Awaitable[None]]:
    """Ignores requests to send audio again, which no answer offers: one datagram may hold 6 000 of them."""

    async def handle_sane(packet: AnyRtcpPacket) -> None:
        if not isinstance(packet, RtcpRtpfbPacket):
            await handle(packet)

    return handle_sane


def _forget_checks(ice: Connection) -> None:
    """Each check holds its socket and its task, and they hold the connection."""
    for pair in ice._check_list:
        pair.task = None
    ice._check_list.clear()


class Inbox(asyncio.Queue[tuple[bytes, int] | None]):
    """Datagrams for aiortc: a bounded number, and others have their turn of the event loop before each."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = asyncio.get_running_loop().time
        # What aiortc may do for the peer; what it did is counted here, too, and paid for by waiting.
        self.work = TokenBucket(WORK_PER_S, WORK_BURST, self.clock())

    def clear(self) -> None:
        """Drop everything."""
        while not self.empty():
            self.get_nowait()

    async def get(self) -> tuple[bytes, int] | None:
        """The next datagram and its component; None at the end of the connection. Cancelling it loses nothing."""
        await asyncio.sleep(self.work.take(self.clock()))
        return await super().get()


class Gatherer:
    """Opens the sockets of a connection, in place of aioice's `Connection.get_component_candidates`."""

    def __init__(self, connection: Connection, inbox: Inbox, drop: Callable[[str], None]) -> None:
        self._connection = connection
        self.inbox = inbox
        self.drop = drop
        self.checks = TokenBucket(CHECKS_PER_S, CHECKS_BURST, inbox.clock())
        # Where authenticated checks came from, and who answered one of ours: those may send data.
        self.callers: set[Address] = set()
        self.answered: set[Address] = set()

    async def gather(self, component: int, addresses: list[str], timeout: float = GATHER_S) -> list[Candidate]:
        """Local candidates of a component: of these addresses, and of the STUN and TURN server if they answer in time.

        On a machine without a network it uses loopback.
        """
        ice = self._connection
        doors = [door for address in addresses or [LOOPBACK] if (door := await self._open(address, component))]
        ice._protocols += doors
        asked: list[asyncio.Task[tuple[Candidate, StunProtocol | None]]] = []
        if ice.stun_server is not None:
            v4 = [door for door in doors if ":" not in door.local_candidate.host]
            asked += [asyncio.create_task(server_reflexive_candidate(door, ice.stun_server)) for door in v4]
        if ice.turn_server is not None:
            asked.append(asyncio.create_task(self._relay(component, ice.turn_server)))
        candidates = [door.local_candidate for door in doors]
        if not asked:
            return candidates
        done, late = await asyncio.wait(asked, timeout=min(timeout, GATHER_S))
        for task in late:
            task.cancel()
        for task in done:
            if task.exception() is None:
                candidate, relay = task.result()
                candidates.append(candidate)
                ice._protocols += [relay] if relay is not None else []
        return candidates

    async def _open(self, address: str, component: int) -> Door | None:
        loop = asyncio.get_running_loop()
        try:
            transport, door = await loop.create_datagram_endpoint(self._door, local_addr=(address, 0))
        except OSError:
            return None
        host, port = transport.get_extra_info("sockname")[:2]
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, RECEIVE_BUFFER)
        foundation, priority = candidate_foundation("host", "udp", host), candidate_priority(component, "host")
        door.local_candidate = Candidate(foundation, component, "udp", priority, host, port, "host")
        return door

    async def _relay(self, component: int, server: tuple[str, int]) -> tuple[Candidate, StunProtocol]:
        ice = self._connection
        return await relayed_candidate(
            component=component,
            hide_related_address=False,
            protocol_factory=self._door,
            turn_server=server,
            turn_username=ice.turn_username,
            turn_password=ice.turn_password,
            turn_ssl=ice.turn_ssl,
            turn_transport=ice.turn_transport,
        )

    def _door(self) -> Door:
        return Door(self._connection, self)


class Door(StunProtocol):
    """One socket, or one relayed address. Nothing of a stranger gets through it."""

    def __init__(self, connection: Connection, gatherer: Gatherer) -> None:
        super().__init__(connection)
        self._peer = gatherer
        # How a check of the peer names this side.
        self._username = f"{connection.local_username}:".encode()

    def datagram_received(self, data: bytes | str, addr: tuple[Any, ...]) -> None:
        assert isinstance(data, bytes)
        reason = self._pass(data, (addr[0], addr[1]))
        if reason is not None:
            self._peer.drop(reason)

    def _pass(self, data: bytes, address: Address) -> str | None:
        """Give a datagram to aioice or aiortc; returns why not, if not."""
        kind = kind_of(data)
        if kind is None:
            return "format"
        if kind == "stun":
            return self._pass_stun(data, address)
        if address not in self._peer.answered:
            return "source"
        parts = dtls_records(data) if kind == "dtls" else [data]
        if not parts:
            return "format"
        if self._peer.inbox.qsize() + len(parts) > MAX_WAITING:
            return "full"
        for part in parts:
            self.receiver.data_received(part, self.local_candidate.component)
        return None

    def _pass_stun(self, data: bytes, address: Address) -> str | None:
        transaction = self.transactions.get(data[8:20])
        if transaction is None and self._username not in data:
            return "stun"
        try:
            message = stun.parse_message(data)
        except (ValueError, StructError):
            return "stun"
        if message.message_class == stun.Class.REQUEST:
            if not self._is_check(message, address):
                return "stun"
            self.receiver.request_received(message, address, self)
        elif transaction is not None and message.message_class != stun.Class.INDICATION:
            transaction.response_received(message, address)
            if self._is_answer(message) and len(self._peer.answered) < MAX_ADDRESSES:
                self._peer.answered.add(address)
        else:
            return "stun"
        return None

    def _is_check(self, message: stun.Message, address: Address) -> bool:
        """Whether a request is a check with this side's password, within the limits."""
        peer, password = self._peer, self.receiver.local_password.encode()
        named = message.attributes.get("USERNAME", "").encode().startswith(self._username)
        if not (named and "PRIORITY" in message.attributes and message.check_message_integrity(password)):
            return False
        if message.message_method != stun.Method.BINDING or not peer.checks.allows(peer.inbox.clock()):
            return False
        if len(peer.callers) < MAX_ADDRESSES:
            peer.callers.add(address)
        return address in peer.callers

    def _is_answer(self, message: stun.Message) -> bool:
        """Whether a response to a check is good, and has the peer's password."""
        password = self.receiver.remote_password
        good = message.message_class == stun.Class.RESPONSE and password is not None
        return good and message.check_message_integrity(str(password).encode())
