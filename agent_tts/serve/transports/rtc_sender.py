"""Sends the speech of a WebRTC peer: one RTP packet each 20 ms."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from struct import Struct
from typing import Any

from aiortc import RTCRtpSender, RTCRtpTransceiver, clock
from aiortc.rtcrtpparameters import RTCRtpCodecParameters
from loguru import logger

from agent_tts.serve.transports.packet_clock import PacketClock, Send
from agent_tts.serve.transports.rtc_track import SpeechTrack

# RTP's fixed header: version 2; marker and payload type; sequence number; timestamp; source.
HEADER = Struct("!BBHII")
VERSION = 0x80
MARKER = 0x80


class SpeechSender(RTCRtpSender):
    """Sends a track by the packet clock. aiortc's own sender takes a task's turn and builds objects for each packet.

    What packets have no part in is aiortc's: sender reports, receiver reports, statistics.

    Args:
        on_late: called for each packet with the seconds by which it left late.
    """

    def __init__(
        self,
        transceiver: RTCRtpTransceiver,
        track: SpeechTrack,
        packet_clock: PacketClock,
        on_late: Callable[[float], None],
    ) -> None:
        """Takes the place of the transceiver's sender, which has not begun."""
        super().__init__("audio", transceiver.sender.transport)
        self._stream_id = transceiver.sender._stream_id
        self._speech = track
        self._packet_clock = packet_clock
        self._on_late = on_late
        transceiver.receiver._set_rtcp_ssrc(self._ssrc)
        transceiver._RTCRtpTransceiver__sender = self  # type: ignore[attr-defined]

    async def _run_rtp(self, codec: RTCRtpCodecParameters) -> None:
        """Send until aiortc cancels it, or the connection is lost."""
        aiortc: Any = self
        aiortc._RTCRtpSender__rtp_started.set()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        send = self._sending(codec.payloadType, lost)
        leave = self._packet_clock.join(send)
        try:
            await lost
        except Exception as error:  # noqa: BLE001 - any of a packet: nobody awaits this task
            logger.opt(exception=error).warning("a WebRTC peer gets no more packets")
        finally:
            leave()
            aiortc._RTCRtpSender__rtp_exited.set()

    def _sending(self, payload_type: int, lost: asyncio.Future[None]) -> Send:
        """What sends one packet; `lost` ends with the connection, or with an error."""
        # In the lower half: a sequence number that wraps soon after the start breaks the peer's SRTP.
        sequence, origin = random.randrange(1 << 15), random.randrange(1 << 32)

        def send(pts: int, due: float) -> None:
            nonlocal sequence
            if lost.done():
                return
            try:
                timestamp = origin + pts & 0xFFFF_FFFF
                payload = self._speech.next_packet()
                header = HEADER.pack(VERSION, MARKER | payload_type, sequence, timestamp, self._ssrc)
                self._send(header + payload)
                self._count(timestamp, len(payload))
                sequence = sequence + 1 & 0xFFFF
                self._on_late(max(0.0, self._packet_clock.clock() - due))
            except ConnectionError:
                lost.set_result(None)
            except Exception as error:  # noqa: BLE001 - any: other peers send after this one
                lost.set_exception(error)

        return send

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
