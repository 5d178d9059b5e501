"""The private names of aiortc and aioice that the node uses. No other file uses one; `check` finds them at start."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from aioice import Connection
from aioice.ice import CandidatePair, StunProtocol
from aiortc import (
    RTCDtlsTransport,
    RTCIceGatherer,
    RTCIceTransport,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCRtpSender,
    RTCRtpTransceiver,
    RTCSctpTransport,
    clock,
)
from aiortc.jitterbuffer import JitterBuffer
from aiortc.rtcrtpparameters import RTCRtpCodecParameters
from aiortc.rtcsctptransport import InboundStream

from agent_tts.system.private_names import require

# Methods in whose place the guard of a peer sets its own.
CONNECT = "_RTCPeerConnection__connect"
GATHER = "get_component_candidates"
ON_RTP = "_handle_rtp_data"
ON_RTCP = "_handle_rtcp_data"
ON_RTP_PACKET = "_handle_rtp_packet"
ON_RTCP_PACKET = "_handle_rtcp_packet"
ON_SCTP = "_handle_data"
SEND_SCTP = "_send"

REORDERED = 4  # packets within which one that is late is waited for, and by which audio is late after a lost one

_AIORTC: dict[type, str] = {
    RTCPeerConnection: CONNECT,
    RTCIceGatherer: "_connection",
    RTCIceTransport: "_connection",
    RTCDtlsTransport: f"{ON_RTP} {ON_RTCP} _tx_srtp",
    RTCRtpReceiver: f"{ON_RTP_PACKET} _set_rtcp_ssrc _RTCRtpReceiver__jitter_buffer",
    RTCRtpSender: f"{ON_RTCP_PACKET} _run_rtp _ssrc _stream_id _RTCRtpSender__rtp_started _RTCRtpSender__rtp_exited "
    "_RTCRtpSender__ntp_timestamp _RTCRtpSender__rtp_timestamp _RTCRtpSender__octet_count _RTCRtpSender__packet_count",
    RTCRtpTransceiver: "_RTCRtpTransceiver__sender",
    RTCSctpTransport: f"{ON_SCTP} {SEND_SCTP} _advertised_rwnd _data_channel_queue _inbound_streams _last_received_tsn "
    "_local_tsn _outbound_queue _sack_misordered _sent_queue",
    InboundStream: "reassembly",
}
_AIOICE: dict[type, str] = {
    Connection: f"{GATHER} _check_list _nominated _protocols _queue data_received request_received",
    CandidatePair: "protocol remote_addr task",
    StunProtocol: "datagram_received receiver transactions",
}


def check() -> None:
    """Raise `SettingsError` if these versions of aiortc and aioice lack a name."""
    require("aiortc", _AIORTC)
    require("aioice", _AIOICE)


def ice_of(transport: RTCDtlsTransport) -> Connection:
    """aioice's connection below a transport, whose sockets are not open yet or are."""
    connection: Connection = transport.transport.iceGatherer._connection
    return connection


def receive_into(ice: Connection, queue: Any) -> None:
    """Have a connection put its datagrams in a queue of ours."""
    ice._queue = queue


def protocols_of(ice: Connection) -> list[StunProtocol]:
    """The sockets of a connection, to add some."""
    return ice._protocols


def receive_at_once(receiver: RTCRtpReceiver) -> None:
    """Have a receiver decode a packet when the next one comes.

    aiortc waits for the fourth, 60 ms longer, and audio is 320 ms late from the first lost packet on.
    """
    receiver._RTCRtpReceiver__jitter_buffer = JitterBuffer(REORDERED, prefetch=1)  # pyrefly: ignore[missing-attribute]


def forget_checks(ice: Connection) -> None:
    """Each check holds its socket and its task, and they hold the connection."""
    for pair in ice._check_list:
        pair.task = None
    ice._check_list.clear()


class SctpState(NamedTuple):
    """What aiortc holds of an association."""

    received: int | None  # the last TSN before the first gap; None before the first
    misordered: Set[int]  # TSNs behind gaps
    window: int  # bytes that the peer may send now
    streams: Mapping[int, InboundStream]
    sent_tsn: int  # of the next chunk
    unacknowledged: int  # chunks that are sent or wait for that
    unsent: int  # messages that are not chunks yet


def sctp_state(sctp: RTCSctpTransport) -> SctpState:
    return SctpState(
        sctp._last_received_tsn,
        sctp._sack_misordered,
        sctp._advertised_rwnd,
        sctp._inbound_streams,
        sctp._local_tsn,
        len(sctp._sent_queue) + len(sctp._outbound_queue),
        len(sctp._data_channel_queue),
    )


class PacketSender(RTCRtpSender):
    """A sender that takes the place of a transceiver's, which has not begun, and makes its own packets.

    What packets have no part in is aiortc's: sender reports, receiver reports, statistics.
    """

    def __init__(self, transceiver: RTCRtpTransceiver) -> None:
        super().__init__("audio", transceiver.sender.transport)
        self._stream_id = transceiver.sender._stream_id
        transceiver.receiver._set_rtcp_ssrc(self._ssrc)
        transceiver._RTCRtpTransceiver__sender = self  # pyrefly: ignore[missing-attribute]

    @property
    def source(self) -> int:
        """What its packets name as their source."""
        return self._ssrc

    async def send_packets(self, payload_type: int) -> None:
        """Send until it is cancelled, which it must not raise, or the connection is lost."""
        raise NotImplementedError

    async def _run_rtp(self, codec: RTCRtpCodecParameters) -> None:
        aiortc: Any = self
        assert codec.payloadType is not None, "it is negotiated"
        aiortc._RTCRtpSender__rtp_started.set()
        await self.send_packets(codec.payloadType)
        aiortc._RTCRtpSender__rtp_exited.set()

    def send_packet(self, packet: bytes) -> None:
        """As aiortc's `_send_rtp`, and aioice's `send`. Raises ConnectionError: there is no connection."""
        dtls: Any = self.transport
        pair = dtls.transport._connection._nominated.get(1)
        if pair is None:
            raise ConnectionError
        pair.protocol.transport.sendto(dtls._tx_srtp.protect(packet), pair.remote_addr)

    def count(self, timestamp: int, size: int) -> None:
        """For aiortc's sender reports, and its statistics."""
        aiortc: Any = self
        aiortc._RTCRtpSender__ntp_timestamp = clock.current_ntp_time()
        aiortc._RTCRtpSender__rtp_timestamp = timestamp
        aiortc._RTCRtpSender__octet_count += size
        aiortc._RTCRtpSender__packet_count += 1
