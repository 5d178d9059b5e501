"""Sends the speech of a WebRTC peer: one RTP packet each 20 ms."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from struct import Struct

from aiortc import RTCRtpTransceiver
from loguru import logger

from agent_tts.serve.transports.aiortc_private import PacketSender
from agent_tts.speech.audio.packet_clock import PacketClock
from agent_tts.speech.audio.track import SpeechTrack

# RTP's fixed header: version 2; marker and payload type; sequence number; timestamp; source.
HEADER = Struct("!BBHII")
VERSION = 0x80
MARKER = 0x80


class SpeechSender(PacketSender):
    """Sends a track by the packet clock. aiortc's own sender takes a task's turn and builds objects for each packet.

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
        super().__init__(transceiver)
        self._speech = track
        self._packet_clock = packet_clock
        self._on_late = on_late
        self._on_fault = on_fault
        # The next packet's, in the lower half at first: one that wraps soon after the start breaks the peer's SRTP.
        self._sequence = random.randrange(1 << 15)
        # Marks the next packet as the first after silence without packets (RFC 7587), or 0.
        self._marker = MARKER
        # The RTP timestamp at the clock's 0.
        self._origin = random.randrange(1 << 32)
        self._payload_type = -1  # negotiated later
        # Set when nothing more can be sent.
        self._lost = asyncio.Event()

    async def send_packets(self, payload_type: int) -> None:
        self._payload_type = payload_type
        leave = self._packet_clock.join(self._send_next)
        with contextlib.suppress(asyncio.CancelledError):  # which would hold this frame, and so the sender
            await self._lost.wait()
        leave()

    def _send_next(self, pts: int, due: float) -> None:
        if self._lost.is_set():
            return
        try:
            timestamp, payload = self._origin + pts & 0xFFFF_FFFF, self._speech.next_packet()
            if payload is None:
                self._marker = MARKER
                return
            head = HEADER.pack(VERSION, self._marker | self._payload_type, self._sequence, timestamp, self.source)
            self.send_packet(head + payload)
            self._marker = 0
            self._sequence = self._sequence + 1 & 0xFFFF
            self.count(timestamp, len(payload))
            self._on_late(max(0.0, self._packet_clock.clock() - due))
        except ConnectionError:
            self._lost.set()
        except Exception as error:  # noqa: BLE001 - any: the packets of other peers leave after this one
            logger.opt(exception=error).error("a packet of a WebRTC peer cannot be made")
            self._lost.set()
            self._on_fault("its packets cannot be made")
