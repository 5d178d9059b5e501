"""A WebRTC peer that notes when packets come, and neither decrypts nor decodes them: what is measured is the node."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from agent_tts.bench.scenario import CallListener
from agent_tts.errors import SpeechError
from agent_tts.protocol.v1 import SUBPROTOCOL
from agent_tts.serve.transports.aiortc_private import ice_of

RTP_VERSION = 2
RTP_HEADER = struct.Struct("!HHI")  # flags, sequence number, timestamp
CLOCK_HZ = 48_000  # of RTP timestamps of Opus
CONNECT_S = 60.0
PING_S = 1.0


@dataclass(slots=True)
class Arrivals:
    """RTP packets as they came."""

    packets: list[tuple[float, int, int]] = field(default_factory=list)  # time (monotonic), timestamp, sequence number
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, timestamp: int, sequence: int) -> None:
        self.packets.append((time.monotonic(), timestamp, sequence))
        self.first.set()

    def between(self, begin: float, end: float) -> tuple[list[float], int]:
        """Of the packets that came between two times: the lateness of each in ms, and how many are missing.

        Lateness is against the grid of the timestamps; the promptest packet is at 0.
        """
        packets = [packet for packet in self.packets if begin <= packet[0] < end]
        if not packets:
            return [], 0
        _, timestamp0, sequence0 = packets[0]
        delays = [at - _since(timestamp, timestamp0, 32) / CLOCK_HZ for at, timestamp, _ in packets]
        numbers = {_since(sequence, sequence0, 16) for _, _, sequence in packets}
        late_ms = [round((delay - min(delays)) * 1_000, 2) for delay in delays]
        return late_ms, max(numbers) - min(numbers) + 1 - len(numbers)


def _since(value: int, start: int, bits: int) -> int:
    """The signed distance of two counters that wrap around."""
    half = 1 << (bits - 1)
    return (value - start + half) % (2 * half) - half


class Peer:
    """A connection with an open data channel, which is kept by pings.

    Args:
        ping: what is sent each `PING_S`; a node that is not pinged takes the peer for a foreign one.
    """

    def __init__(self, label: str, ping: str) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.channel = self.connection.createDataChannel(label)
        self._ping = ping
        self._opened = asyncio.Event()
        self.channel.on("open", self._opened.set)
        self._pinging: asyncio.Task[None] | None = None

    async def connect(self, client: httpx.AsyncClient, path: str) -> None:
        """Offer what has been gathered at a path. Raises SpeechError: it is refused; httpx.HTTPError."""
        local = self.connection.localDescription
        answer = await client.post(path, json={"sdp": local.sdp, "type": local.type})
        if answer.status_code != 200:
            raise SpeechError(f"the node refuses a WebRTC peer: HTTP {answer.status_code} {answer.text[:200]}")
        remote = answer.json()
        await self.connection.setRemoteDescription(RTCSessionDescription(remote["sdp"], remote["type"]))
        await self._opened.wait()
        self._pinging = asyncio.create_task(self._keep(), name="pings")

    async def close(self) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.gather(self._pinging, return_exceptions=True)
        await self.connection.close()

    async def _keep(self) -> None:
        while self.channel.readyState == "open":
            self.channel.send(self._ping)
            await asyncio.sleep(PING_S)


class ListeningPeer(Peer):
    """One peer with one context at a time."""

    def __init__(self) -> None:
        super().__init__(SUBPROTOCOL, json.dumps({"type": "ping", "t": 0}))
        self._receiver: Any = self.connection.addTransceiver("audio", direction="recvonly").receiver
        self.channel.on("message", self._on_message)
        self._listener: CallListener | None = None
        self.arrivals = Arrivals()

    async def begin(self, client: httpx.AsyncClient) -> None:
        """Connect, and receive the first packet. Raises SpeechError, TimeoutError."""
        async with asyncio.timeout(CONNECT_S):
            await self.connection.setLocalDescription(await self.connection.createOffer())
            ice = ice_of(self._receiver.transport)
            ice.data_received = partial(self._on_datagram, ice.data_received)
            await self.connect(client, "/v1/rtc/offer")
            await self.arrivals.first.wait()

    def listen(self, listener: CallListener) -> None:
        """Tell this listener of messages from now on, and forget the packets so far."""
        self._listener, self.arrivals = listener, Arrivals()

    def send(self, type_: str, **fields: Any) -> None:
        """Send a message of the protocol; dropped when the channel is closed."""
        if self.channel.readyState == "open":
            self.channel.send(json.dumps({"type": type_, **fields}))

    def _on_message(self, data: str) -> None:
        message = json.loads(data)
        if self._listener is None:
            return
        self._listener.saw(message)
        if message["type"] == "context.started":  # audio is on the track, not in messages
            self._listener.begun.set()
        if message["type"] == "error" or "context_id" in message:
            self._listener.told(time.monotonic(), message)

    def _on_datagram(self, forward: Callable[[bytes, int], None], data: bytes, component: int) -> None:
        """Take the header of an RTP packet, which is not encrypted; everything else goes its way."""
        if data[0] >> 6 == RTP_VERSION and not 192 <= data[1] < 224:  # those are RTCP's types
            _, sequence, timestamp = RTP_HEADER.unpack_from(data)
            self.arrivals.take(timestamp, sequence)
        else:
            forward(data, component)
