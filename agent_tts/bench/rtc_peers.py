"""A process of WebRTC listeners: `python -m agent_tts.bench.rtc_peers`, see `workers`.

Its job is a node and a number of peers, which are spoken to without end; it is ready once all of them hear; the word to
go says for how many seconds they listen; its answer is a list of what each has heard.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription

from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import KEY, Turn, work
from agent_tts.errors import SpeechError
from agent_tts.protocol.v1 import SUBPROTOCOL

CLOCK_HZ = 48_000  # of RTP timestamps of Opus
CONNECT_S = 60.0
TEXT = "speech " * 500
SPEAK_S = 60.0  # before more text is sent: it is of about 200 s
PING_S = 1.0  # a node that is not pinged takes the peer for a foreign one


@dataclass(slots=True)
class Arrivals:
    """RTP packets as they came."""

    # When each came, and its timestamp and sequence number.
    packets: list[tuple[float, int, int]] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, timestamp: int, sequence: int) -> None:
        """A packet came."""
        self.packets.append((time.monotonic(), timestamp, sequence))
        self.first.set()

    def lateness_ms(self) -> list[float]:
        """How much later than the promptest packet each came, against the grid of their timestamps."""
        if not self.packets:
            return []
        start = self.packets[0][1]
        delays = [at - _since(timestamp, start, 32) / CLOCK_HZ for at, timestamp, _ in self.packets]
        least = min(delays)
        return [(delay - least) * 1_000 for delay in delays]

    def lost(self) -> int:
        """Packets that are missing between the first and the last."""
        if not self.packets:
            return 0
        start = self.packets[0][2]
        numbers = {_since(sequence, start, 16) for _, _, sequence in self.packets}
        return max(numbers) - min(numbers) + 1 - len(numbers)


def _since(value: int, start: int, bits: int) -> int:
    """The signed distance of two counters that wrap around."""
    half = 1 << (bits - 1)
    return (value - start + half) % (2 * half) - half


class Peer:
    """One listener. It counts packets and decodes none: what is measured is the node."""

    def __init__(self) -> None:
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        receiver: Any = self._connection.addTransceiver("audio", direction="recvonly").receiver
        receiver._handle_rtp_packet = self._on_packet
        self._channel = self._connection.createDataChannel(SUBPROTOCOL)
        self._opened = asyncio.Event()
        self._channel.on("open", self._opened.set)
        self._channel.on("message", self._on_message)
        # Packets of the measurement.
        self.arrivals = Arrivals()
        # Codes of errors that the node sent.
        self.errors: list[str] = []

    async def connect(self, client: httpx.AsyncClient) -> None:
        """Connect, and hear the first packet."""
        await self._connection.setLocalDescription(await self._connection.createOffer())
        local = self._connection.localDescription
        answer = await client.post("/v1/rtc/offer", json={"sdp": local.sdp, "type": local.type})
        if answer.status_code != 200:
            raise SpeechError(f"the node refuses a WebRTC peer: HTTP {answer.status_code} {answer.text[:200]}")
        await self._accept(answer.json())
        await self._opened.wait()
        await self.arrivals.first.wait()

    def send(self, type_: str, **fields: Any) -> None:
        """Send a message of the protocol."""
        if self._channel.readyState == "open":
            self._channel.send(json.dumps({"type": type_, **fields}))

    async def close(self) -> None:
        await self._connection.close()

    async def _accept(self, answer: dict[str, str]) -> None:
        await self._connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))

    def _on_message(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "error":
            self.errors.append(message["code"])

    async def _on_packet(self, packet: Any, arrival_time_ms: int) -> None:
        self.arrivals.take(packet.timestamp, packet.sequence_number)


async def _keep_speaking(peers: list[Peer], voice: str | None) -> None:
    """Ping every peer each second, and give it something to hear; one peer after the other, as callers come."""
    for turn in itertools.count():
        for peer in peers:
            if turn % round(SPEAK_S / PING_S) == 0:
                peer.send("context.open", context_id=f"t{turn}", voice=voice, timestamps="none")
                peer.send("text.append", context_id=f"t{turn}", text=TEXT)
            peer.send("ping", t=turn)
            await asyncio.sleep(PING_S / len(peers))


async def main(job: dict[str, Any], turn: Turn) -> None:
    """See `work`."""
    key = os.environ.get(KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    peers = [Peer() for _ in range(job["count"])]
    speaker: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(CONNECT_S):
            async with httpx.AsyncClient(base_url=job["url"], headers=headers, timeout=30) as client:
                for peer in peers:
                    await peer.connect(client)
        speaker = asyncio.create_task(_keep_speaking(peers, job["voice"]), name="speaker")
        seconds = (await turn.ready())["seconds"]
        for peer in peers:
            peer.arrivals = Arrivals()
        await asyncio.sleep(seconds)
        turn.answer([_figures(peer) for peer in peers])
    finally:
        if speaker is not None:
            speaker.cancel()
            await asyncio.gather(speaker, return_exceptions=True)
        await asyncio.gather(*(peer.close() for peer in peers))


def _figures(peer: Peer) -> dict[str, Any]:
    late = peer.arrivals.lateness_ms()
    return {
        "packets": len(late),
        "lost": peer.arrivals.lost(),
        "errors": peer.errors,
        "lateness_ms": percentiles(late, 50, 99, 100),
        "all_lateness_ms": [round(value, 2) for value in late],
    }


if __name__ == "__main__":
    work(main)
