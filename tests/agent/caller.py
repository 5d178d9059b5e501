"""A client that calls the agent. It uses aiortc and RTVI alone, no code of the package."""

from __future__ import annotations

import asyncio
import fractions
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import av
import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCSessionDescription
from numpy.typing import NDArray

from tests.rtc_peer import LOUD, RATE, WebRtcEnd, heard, rms
from tests.support import ended

FRAME = RATE // 50


class Microphone(MediaStreamTrack):
    """Sends silence, and the audio given to `put`."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        # Pieces of 20 ms at 48 kHz, not sent yet.
        self._pieces: deque[NDArray[np.int16]] = deque()
        self._pts = 0
        self._began = time.monotonic()
        # When the last piece given to `put` has been sent.
        self.spoken_at = 0.0

    def put(self, pcm: bytes) -> float:
        """Queue pcm_s16le (24 kHz, mono) for sending. Returns its length in seconds."""
        samples = np.repeat(np.frombuffer(pcm, "<i2"), 2)
        samples = np.pad(samples, (0, -len(samples) % FRAME))
        self._pieces.extend(samples.reshape(-1, FRAME))
        return len(samples) / RATE

    @property
    def speaking(self) -> bool:
        return bool(self._pieces)

    async def recv(self) -> av.AudioFrame:
        due = self._began + self._pts / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        samples = self._pieces.popleft() if self._pieces else np.zeros(FRAME, np.int16)
        if len(self._pieces) == 0 and samples.any():
            self.spoken_at = time.monotonic()
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._pts, fractions.Fraction(1, RATE)
        self._pts += FRAME
        return frame


class Caller(WebRtcEnd):
    """One call. It keeps every message and every sound with its arrival time."""

    PATIENCE_S = 30.0

    def __init__(self, label: str = "chat") -> None:
        super().__init__()
        self.microphone = Microphone()
        self.connection.addTrack(self.microphone)
        self.channel = self.connection.createDataChannel(label)
        self.channel.on("message", self._on_message)
        self.channel.on("open", self._changed.set)
        # (arrival, message), in order of arrival.
        self.messages: list[tuple[float, dict[str, Any]]] = []
        # (arrival, loudness) of each piece of audio.
        self.sound: list[tuple[float, float]] = []
        # The samples, mono at 48 kHz.
        self.pieces: list[NDArray[np.int16]] = []
        self._pinger: asyncio.Task[None] | None = None
        self._ids = 0

    # ------------------------------------------------------------ actions

    def send(self, type_: str, data: dict[str, Any] | None = None) -> None:
        self._ids += 1
        self.channel.send(json.dumps({"label": "rtvi-ai", "type": type_, "id": str(self._ids), "data": data or {}}))

    def type(self, text: str) -> None:
        self.send("send-text", {"content": text, "options": {"run_immediately": True, "audio_response": True}})

    async def ask(self, text: str) -> float:
        """Type, and wait for the first sound. Returns when it arrived."""
        self.type(text)
        return await self.loud()

    async def say(self, pcm: bytes) -> None:
        """Speak, and wait until all of it is sent."""
        self.microphone.put(pcm)
        await self.wait(lambda: not self.microphone.speaking, 30)

    # ------------------------------------------------------------ waiting

    def of(self, type_: str, since: float = 0.0) -> list[dict[str, Any]]:
        """Messages of a type."""
        return [message for at, message in self.messages if message["type"] == type_ and at >= since]

    def ours(self, kind: str, since: float = 0.0) -> list[dict[str, Any]]:
        """The agent's own messages of a kind."""
        return [m["data"] for m in self.of("server-message", since) if m["data"]["kind"] == kind]

    def at(self, type_: str, since: float = 0.0) -> float:
        """When the first message of a type arrived."""
        return next(at for at, message in self.messages if message["type"] == type_ and at >= since)

    async def message(self, type_: str, since: float = 0.0, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait for the first message of a type."""
        await self.wait(lambda: self.of(type_, since), timeout_s)
        return self.of(type_, since)[0]

    async def own(self, kind: str, since: float = 0.0, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait for the first of the agent's own messages of a kind."""
        await self.wait(lambda: self.ours(kind, since), timeout_s)
        return self.ours(kind, since)[0]

    def own_at(self, kind: str, since: float = 0.0) -> float:
        """When the first of the agent's own messages of a kind arrived."""
        own = ((at, m["data"]) for at, m in self.messages if m["type"] == "server-message" and at >= since)
        return next(at for at, data in own if data["kind"] == kind)

    async def loud(self, since: float = 0.0, timeout_s: float = 30.0) -> float:
        """Wait for the first sound. Returns when it arrived."""
        await self.wait(lambda: self._loud_at(since), timeout_s)
        return self._loud_at(since)

    async def quiet(self, ms: int, timeout_s: float = 60.0) -> None:
        """Wait for a silence of `ms` milliseconds."""
        await self.wait(lambda: self.sound and time.monotonic() - self.last_sound(0.0) > ms / 1_000, timeout_s)

    def last_sound(self, before: float) -> float:
        """When the last sound arrived, before `before` if given."""
        return max((at for at, level in self.sound if level > LOUD and (not before or at < before)), default=0.0)

    def played_ms(self, before: float) -> float:
        """Milliseconds from the first sound to the last before `before`, counted in samples, whatever their delay."""
        loud = [index for index, (at, level) in enumerate(self.sound) if level > LOUD and at < before]
        return sum(len(piece) for piece in self.pieces[loud[0] : loud[-1] + 1]) * 1_000 / RATE if loud else 0.0

    def delay_s(self) -> float:
        """How much later audio arrives than messages: aiortc buffers 80 ms before it decodes."""
        return self._loud_at(0.0) - self.at("bot-started-speaking")

    def _loud_at(self, since: float) -> float:
        return next((at for at, level in self.sound if level > LOUD and at >= since), 0.0)

    # ------------------------------------------------------------ internals

    async def connect(self, sdp: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        await self.wait(lambda: self.channel.readyState == "open")

    async def accept(self, answer: dict[str, str]) -> None:
        await self.connect(answer["sdp"])
        self._pinger = asyncio.create_task(self._ping())
        self.send("client-ready", {"version": "2.0.0", "about": {"library": "test"}})
        await self.message("bot-ready")

    async def close(self) -> None:
        if self._pinger is not None:
            await ended(self._pinger)
        await super().close()

    async def _ping(self) -> None:
        while True:
            self.channel.send("ping")
            await asyncio.sleep(1)

    def _on_message(self, data: str) -> None:
        message = json.loads(data)
        if message.get("label") == "rtvi-ai" or self.channel.label != "chat":
            self.messages.append((time.monotonic(), message))
            self._changed.set()

    async def _listen(self, track: MediaStreamTrack) -> None:
        async for _, samples in heard(track):
            self.sound.append((time.monotonic(), rms(samples)))
            self.pieces.append(samples)
            self._changed.set()


@asynccontextmanager
async def calling(
    url: str, headers: dict[str, str] | None = None, choice: dict[str, str] | None = None, query: str = ""
) -> AsyncIterator[Caller]:
    """A call that is connected."""
    async with Caller() as caller:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as client:
            offer = {"sdp": await caller.offer(), "type": "offer", "request_data": choice or {}}
            reply = await client.post(f"/api/agent/offer{query}", json=offer)
        if reply.status_code != 200:
            raise ConnectionRefusedError(f"{reply.status_code}: {reply.text}")
        await caller.accept(reply.json())
        yield caller
