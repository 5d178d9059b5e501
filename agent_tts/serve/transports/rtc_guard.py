"""What stands between the network and aiortc, which trusts every datagram and works off all it has at once.

A peer's sockets are ours (`PeerSocket`). Data passes from an address that has answered a connectivity check with the
peer's password, and waits in a bounded queue, from which aiortc takes no more than a share of the event loop
(`DatagramQueue`). What a peer sends on its data channels passes only where aiortc's work and memory for it are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from socket import AF_INET, AF_UNSPEC, SO_RCVBUF, SOL_SOCKET
from struct import error as StructError
from typing import Any

from aioice import Candidate, Connection, stun
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import StunProtocol, relayed_candidate, server_reflexive_candidate
from aiortc import RTCPeerConnection, RTCSctpTransport
from aiortc.rtp import AnyRtcpPacket, RtcpRtpfbPacket, RtpPacket, is_rtcp
from loguru import logger

from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports import aiortc_private as private
from agent_tts.serve.transports.datagrams import Hostile, dtls_records, kind_of, opus_ms, sctp_work
from agent_tts.serve.transports.ice import server_name

GATHER_S = 1  # for answers of STUN and TURN servers, during which the client waits for its answer
LOOPBACK = "127.0.0.1"  # for a machine without a network

# Datagrams that wait for aiortc. A burst of a data channel is a congestion window long; SCTP repeats what is dropped.
MAX_WAITING = 512

# What one peer may have aiortc do: datagrams, or as much work. A caller's microphone sends 50 datagrams a second, and
# each message of the data channel, and each acknowledgement of one, is one more.
WORK_PER_S = 1_000
WORK_BURST = 2_000
DATAGRAM_S = 0.0003  # of the event loop, for one

CANCEL_AGAIN_S = 0.05

RTCP_UNIT = 64  # bytes of RTCP that aiortc handles in the time of one datagram

# Audio of a microphone: seconds a second, and more for a moment after the network has stood. Packets of less than 5 ms
# count as 5 ms.
AUDIO_RATE = 1.25
AUDIO_BURST_S = 10.0
SHORTEST_S = 0.005
MAX_SOURCES = 8  # of RTP and RTCP, which libsrtp and aiortc remember for ever

# Connectivity checks of a peer: some a second for each pair of candidates, later one in 2.5 s.
CHECKS_PER_S = 100
CHECKS_BURST = 300
MAX_CONFLICTS = 32  # of roles, after each of which aioice repeats its check inside the last one
MAX_ADDRESSES = 64  # from which a peer may send; its network gives it some

RECEIVE_BUFFER = 262_144  # bytes of a socket

ROLE_CONFLICT = 487

Address = tuple[str, int]


class PeerGuard:
    """Guards one connection, from its first offer on.

    Args:
        connection: has gathered no candidates yet.
        flow: in which the peer takes its turns of the event loop.
        max_message: bytes of the longest message that the peer may send on a data channel.
        work_per_kib: what it costs to obey 1 KiB of messages, in datagrams that are only received; see `WORK_PER_S`.
    """

    def __init__(
        self, connection: RTCPeerConnection, metrics: Metrics, flow: Flow, max_message: int, work_per_kib: float = 0
    ) -> None:
        # Why the peer must be closed, or None. None of its SCTP packets is handled then.
        self.fault: str | None = None
        # When the peer last told of the audio that it gets, in monotonic seconds; 0 before it has.
        self.heard_at = 0.0
        self._metrics = metrics
        self._max_message = max_message
        self._work_per_byte = work_per_kib / 1_024
        self._inbox = DatagramQueue(flow)
        # aiortc's tasks that connect the peer.
        self._connecting: set[asyncio.Task[None]] = set()
        # Takes apart what would keep a closed connection in memory until the garbage collector's next full run.
        self._ties = contextlib.ExitStack()
        connection.on("signalingstatechange", lambda: self._on_signaling(connection))

    async def close(self, name: str, close: Callable[[], Awaitable[object]], within_s: float) -> None:
        """Have `close` close the connection within so many seconds, and let it go; `name` is for the log."""
        try:
            async with asyncio.timeout(within_s):
                await self._stop_connecting()
                await close()
        except TimeoutError:
            logger.error("{}: the connection did not close in {:g} s", name, within_s)
        finally:
            self._inbox.clear()
            self._ties.close()

    async def _stop_connecting(self) -> None:
        """End the handshake, if it runs, before the connection is closed: aiortc would go on, and start what nobody
        stops. Cancelling the wait is safe.
        """
        while self._connecting:
            for task in self._connecting:  # again, if `asyncio.wait_for` has swallowed it
                task.cancel()
            await asyncio.wait(self._connecting, timeout=CANCEL_AGAIN_S)

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
        ice = private.ice_of(transport)
        private.receive_into(ice, self._inbox)
        self._replace(connection, private.CONNECT, self._connect)
        self._replace(ice, private.GATHER, lambda _: Gatherer(ice, self._inbox, self.drop).gather)
        self._replace(transport, private.ON_RTP, partial(self._checked, self._is_known_rtp, "audio"))
        self._replace(transport, private.ON_RTCP, partial(self._checked, self._is_known_rtcp, "audio"))
        self._replace(sctp, private.ON_SCTP, partial(self._checked, partial(self._is_sane_sctp, sctp), "sctp"))
        self._replace(sctp, private.SEND_SCTP, _reliable)
        for transceiver in connection.getTransceivers():
            sender, receiver = transceiver.sender, transceiver.receiver
            self._replace(sender, private.ON_RTCP_PACKET, partial(self._checked, self._is_no_nack, None))
            private.receive_at_once(receiver)
            self._replace(receiver, private.ON_RTP_PACKET, partial(self._checked, self._microphone(), "audio"))
        self._ties.callback(transport.remove_all_listeners)
        self._ties.callback(private.forget_checks, ice)

    def _replace(self, owner: object, method: str, ours: Callable[[Any], object]) -> None:
        """Stand before a method of one object until the guard closes; `ours` makes what does, of the method."""
        setattr(owner, method, ours(getattr(owner, method)))
        self._ties.callback(delattr, owner, method)

    def _connect(self, connect: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        def tell() -> None:
            """Apart, because a cancelled task holds the variables of its coroutine, which must not hold the task."""
            task = asyncio.current_task()
            assert task is not None
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

        async def connect_and_tell() -> None:
            tell()
            await connect()

        return connect_and_tell

    def _checked(
        self, admits: Callable[..., bool], reason: str | None, handle: Callable[..., Awaitable[None]]
    ) -> Callable[..., Awaitable[None]]:
        """`handle` for what is admitted; the rest is dropped, and counted under a reason.

        An error ends the peer: aiortc asserts and unpacks what the peer sends.
        """

        async def handle_sane(*given: Any, **named: Any) -> None:
            if self.fault is not None:
                return
            try:
                if admits(*given):
                    await handle(*given, **named)
                elif reason is not None:
                    self.drop(reason)
            except ConnectionError:
                raise
            except Hostile as found:
                self.fault = str(found)
            except Exception as error:  # noqa: BLE001 - any; see above
                logger.opt(exception=error).debug("a packet cannot be handled")
                self.fault = f"a packet cannot be handled: {type(error).__name__}"

        return handle_sane

    def _is_sane_sctp(self, sctp: RTCSctpTransport, data: bytes) -> bool:
        work = sctp_work(data, sctp, self._max_message)
        if work is not None:
            self._inbox.work.take(self._inbox.clock(), work - 1 + len(data) * self._work_per_byte)
        return work is not None

    def _is_known_rtp(self, data: bytes, *_: object) -> bool:
        return self._inbox.knows(data[8:12])

    def _is_known_rtcp(self, data: bytes) -> bool:
        """Counts as work what a datagram holds: reports of some bytes each."""
        is_known = self._inbox.knows(data[4:8])
        if is_known:
            self._inbox.work.take(self._inbox.clock(), len(data) // RTCP_UNIT)
        return is_known

    def _is_no_nack(self, packet: AnyRtcpPacket) -> bool:
        """Requests to send audio again are ignored, which no answer offers: one datagram may hold 6 000 of them."""
        self.heard_at = time.monotonic()
        return not isinstance(packet, RtcpRtpfbPacket)

    def _microphone(self) -> Callable[..., bool]:
        """Bounds what a microphone sends: aiortc decodes all of it, and ends the decoder at an empty packet."""
        seconds = TokenBucket(AUDIO_RATE, AUDIO_BURST_S, self._inbox.clock())

        def admits(packet: RtpPacket, *_: object) -> bool:
            audio_s = opus_ms(packet.payload) / 1_000
            return bool(audio_s) and seconds.allows(self._inbox.clock(), max(audio_s, SHORTEST_S))

        return admits


def _reliable(send: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Sends all messages, and in order, whatever the peer's data channel says: no message of the protocol may be lost,
    and aiortc works off those that may be in quadratic time.
    """

    async def send_all(stream_id: int, pp_id: int, data: bytes, **_: object) -> None:
        await send(stream_id, pp_id, data)

    return send_all


class DatagramQueue(asyncio.Queue[tuple[bytes, int] | None]):
    """Datagrams for aiortc: a bounded number, and others have their turn of the event loop before each."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow
        self.clock = asyncio.get_running_loop().time
        # What aiortc may do for the peer; what it did is counted here, too, and paid for by waiting.
        self.work = TokenBucket(WORK_PER_S, WORK_BURST, self.clock())
        # Whose RTP and RTCP was authentic.
        self._sources: set[bytes] = set()

    def may_know(self, source: bytes) -> bool:
        """Whether a source is known or there is room for one more."""
        return source in self._sources or len(self._sources) < MAX_SOURCES

    def knows(self, source: bytes) -> bool:
        """Remember a source that is authentic; returns False if there are `MAX_SOURCES` others."""
        if self.may_know(source):
            self._sources.add(source)
            return True
        return False

    def clear(self) -> None:
        """Drop everything."""
        while not self.empty():
            self.get_nowait()

    async def get(self) -> tuple[bytes, int] | None:
        """The next datagram and its component; None at the end of the connection. Cancelling it loses nothing."""
        await asyncio.sleep(self.work.take(self.clock()))
        datagram = await super().get()
        try:
            await self._flow.wait(DATAGRAM_S)
        except asyncio.CancelledError:
            self._queue.appendleft(datagram)  # pyrefly: ignore[missing-attribute]
            raise
        return datagram


class Gatherer:
    """Opens the sockets of a connection, in place of aioice's `Connection.get_component_candidates`."""

    def __init__(self, connection: Connection, inbox: DatagramQueue, drop: Callable[[str], None]) -> None:
        self._connection = connection
        self.inbox = inbox
        self.drop = drop
        self.checks = TokenBucket(CHECKS_PER_S, CHECKS_BURST, inbox.clock())
        # Where authenticated checks came from, and who answered one of ours: those may send data.
        self.callers: set[Address] = set()
        self.answered: set[Address] = set()
        self.conflicts = 0

    async def gather(self, component: int, addresses: list[str], timeout: float = GATHER_S) -> list[Candidate]:
        """Local candidates of a component: of these addresses, and of the STUN and TURN server if they answer in time.

        On a machine without a network it uses loopback.
        """
        ice = self._connection
        sockets = [sock for address in addresses or [LOOPBACK] if (sock := await self._open(address, component))]
        private.protocols_of(ice).extend(sockets)
        asked: list[asyncio.Task[tuple[Candidate, StunProtocol | None]]] = []
        if ice.stun_server is not None:
            v4 = [sock for sock in sockets if ":" not in sock.local_candidate.host]
            asked += [asyncio.create_task(_reflexive(sock, ice.stun_server)) for sock in v4]
        if ice.turn_server is not None:
            asked.append(asyncio.create_task(self._relay(component, ice.turn_server)))
        candidates = [sock.local_candidate for sock in sockets]
        if not asked:
            return candidates
        done, late = await asyncio.wait(asked, timeout=min(timeout, GATHER_S))
        for task in late:
            task.cancel()
        for task in done:
            if task.exception() is None:
                candidate, relay = task.result()
                candidates.append(candidate)
                if relay is not None:
                    private.protocols_of(ice).append(relay)
        return candidates

    async def _open(self, address: str, component: int) -> PeerSocket | None:
        loop = asyncio.get_running_loop()
        try:
            transport, sock = await loop.create_datagram_endpoint(self._socket, local_addr=(address, 0))
        except OSError:
            return None
        host, port = transport.get_extra_info("sockname")[:2]
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, RECEIVE_BUFFER)
        foundation, priority = candidate_foundation("host", "udp", host), candidate_priority(component, "host")
        sock.local_candidate = Candidate(foundation, component, "udp", priority, host, port, "host")
        return sock

    async def _relay(self, component: int, server: tuple[str, int]) -> tuple[Candidate, StunProtocol]:
        ice = self._connection
        name = server_name(server[0], AF_UNSPEC, ice.turn_ssl)
        address = await name.at(server[1])
        return await relayed_candidate(
            component=component,
            hide_related_address=False,
            protocol_factory=self._socket,
            turn_server=address,
            turn_username=ice.turn_username,
            turn_password=ice.turn_password,
            turn_ssl=name.tls or False,  # pyrefly: ignore[bad-argument-type]  # it goes to `create_connection`
            turn_transport=ice.turn_transport,
        )

    def _socket(self) -> PeerSocket:
        return PeerSocket(self._connection, self)


async def _reflexive(sock: PeerSocket, server: tuple[str, int]) -> tuple[Candidate, None]:
    return await server_reflexive_candidate(sock, await server_name(server[0], AF_INET).at(server[1]))


class PeerSocket(StunProtocol):
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
        if kind == "media" and not self._peer.inbox.may_know(data[4:8] if is_rtcp(data) else data[8:12]):
            return "audio"
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
            if message.error_code == ROLE_CONFLICT:
                self._peer.conflicts += 1
                if self._peer.conflicts > MAX_CONFLICTS:
                    return "stun"
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
        return good and message.check_message_integrity(password.encode())
