"""Sends the speech of a WebRTC peer: one RTP packet each 20 ms."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from struct import Struct
from typing import Any

from aiortc import RTCRtpSender, RTCRtpTransceiver, clock
from aiortc.rtcrtpparameters import RTCRtpCodecParameters
from loguru import logger

from agent_tts.speech.audio.packet_clock import PacketClock
from agent_tts.speech.audio.track import SpeechTrack

# RTP's fixed header: version 2; marker and payload type; sequence number; timestamp; source.
HEADER = Struct("!BBHII")
VERSION = 0x80
MARKER = 0x80


class SpeechSender(RTCRtpSender):
    """Sends a track by the packet clock. aiortc's own sender takes a task's turn and builds objects for each packet.

    What packets have no part in is aiortc's: sender reports, receiver reports, statistics.

    Args:
        on_late: called for each packet with the seconds by which it left late.
        on_fault: called once, with the reason, if no more packets can be made.
    """

    def __init__(
        self,
        transceiver: RTCRtpTransceiver,
        track: SpeechTrack,
        packet_clock: PacketClock,
        on_late: Callable[[float], None],
        on_fault: Callable[[str], None],
    ) -> None:
        """Takes the place of the transceiver's sender, which has not begun."""
        super().__init__("audio", transceiver.sender.transport)
        self._stream_id = transceiver.sender._stream_id
        self._speech = track
        self._packet_clock = packet_clock
        self._on_late = on_late
        self._on_fault = on_fault
        # Of the next packet, in the lower half at first: one that wraps soon after the start breaks the peer's SRTP.
        self._sequence = random.randrange(1 << 15)
        # Marks the next packet as the first after silence without packets (RFC 7587), or 0.
        self._marker = MARKER
        # The RTP timestamp at the clock's 0.
        self._origin = random.randrange(1 << 32)
        self._payload_type = -1  # negotiated later
        # Set when nothing more can be sent.
        self._lost = asyncio.Event()
        transceiver.receiver._set_rtcp_ssrc(self._ssrc)
        transceiver._RTCRtpTransceiver__sender = self  # type: ignore[attr-defined]

    async def _run_rtp(self, codec: RTCRtpCodecParameters) -> None:
        """Send until aiortc cancels it, or the connection is lost."""
        aiortc: Any = self
        assert codec.payloadType is not None, "it is negotiated"
        self._payload_type = codec.payloadType
        aiortc._RTCRtpSender__rtp_started.set()
        leave = self._packet_clock.join(self._send_next)
        with contextlib.suppress(asyncio.CancelledError):  # which would hold this frame, and so the sender
            await self._lost.wait()
        leave()
        aiortc._RTCRtpSender__rtp_exited.set()

    def _send_next(self, pts: int, due: float) -> None:
        if self._lost.is_set():
            return
        try:
            timestamp, payload = self._origin + pts & 0xFFFF_FFFF, self._speech.next_packet()
            if payload is None:
                self._marker = MARKER
                return
            self._send(
                HEADER.pack(VERSION, self._marker | self._payload_type, self._sequence, timestamp, self._ssrc) + payload
            )
            self._marker = 0
            self._sequence = self._sequence + 1 & 0xFFFF
            self._count(timestamp, len(payload))
            self._on_late(max(0.0, self._packet_clock.clock() - due))
        except ConnectionError:
            self._lost.set()
        except Exception as error:  # noqa: BLE001 - any: the packets of other peers leave after this one
            logger.opt(exception=error).error("a packet of a WebRTC peer cannot be made")
            self._lost.set()
            self._on_fault("its packets cannot be made")

    def _send(self, packet: bytes) -> None:
        """As aiortc's `_send_rtp`, and aioice's `send`. Raises ConnectionError: there is no connection."""
        dtls: Any = self.transport
        pair = dtls.transport._connection._nominated.get(1)
        if pair is None:
            raise ConnectionError
        pair.protocol.transport.sendto(dtls._tx_srtp.protect(packet), pair.remote_addr)

    def _count(self, timestamp: int, size: int) -> None:
        """For aiortc's sender reports, and its statistics."""
        aiortc: Any = self
        aiortc._RTCRtpSender__ntp_timestamp = clock.current_ntp_time()
        aiortc._RTCRtpSender__rtp_timestamp = timestamp
        aiortc._RTCRtpSender__octet_count += size
        aiortc._RTCRtpSender__packet_count += 1
