"""A scripted agent for the page's calls: a real WebRTC peer, written with aiortc alone."""

from __future__ import annotations

import asyncio
import fractions
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiortc import MediaStreamTrack, RTCSessionDescription
from av import AudioFrame
from fastapi import FastAPI
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.rtc_peer import RATE, WebRtcEnd, heard

FRAME = RATE // 50
WAIT_S = 60.0

Message = dict[str, Any]


class Voice(MediaStreamTrack):
    """A tone or silence, 20 ms at a time, on a monotonic clock."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.hz = 0.0  # 0: silence
        self._samples = 0
        self._started = 0.0

    async def recv(self) -> AudioFrame:
        """The next 20 ms of audio, at its due time."""
        self._started = self._started or time.monotonic()
        await asyncio.sleep(max(0.0, self._started + self._samples / RATE - time.monotonic()))
        at = (self._samples + np.arange(FRAME)) / RATE
        wave = np.sin(2 * np.pi * self.hz * at) * (8_000 if self.hz else 0)
        frame = AudioFrame.from_ndarray(wave.astype(np.int16)[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._samples, fractions.Fraction(1, RATE)
        self._samples += FRAME
        return frame


class Call(WebRtcEnd):
    """One call. It records what the page sends; the test decides what the agent sends."""

    def __init__(self, choice: Message) -> None:
        super().__init__()
        # `request_data` of the offer.
        self.choice = choice
        self.voice = Voice()
        # RTVI messages from the page, in order, and all others.
        self.messages: list[Message] = []
        self.signals: list[Message] = []
        self.pings = 0
        # The microphone's audio: mono samples at 48 kHz, 20 ms each, the last ten seconds.
        self.heard: list[NDArray[np.int16]] = []
        self.connection.on("datachannel", self._on_channel)
        self._channel: Any = None

    async def answer(self, offer: RTCSessionDescription) -> str:
        """The SDP of the answer."""
        await self.connection.setRemoteDescription(offer)
        transceiver = self.connection.getTransceivers()[0]
        transceiver.direction = "sendrecv"
        self.connection.addTrack(self.voice)
        await self.connection.setLocalDescription(await self.connection.createAnswer())
        return self.connection.localDescription.sdp

    def say(self, type_: str, **data: Any) -> None:
        """Send an RTVI message to the page."""
        self._channel.send(json.dumps({"label": "rtvi-ai", "type": type_, "data": data}))

    def tell(self, kind: str, **data: Any) -> None:
        """Send one of the agent's own messages."""
        self.say("server-message", kind=kind, **data)

    def of(self, type_: str, t: str | None = None) -> list[Message]:
        """Data of the page's messages of a type."""
        found = [message["data"] for message in self.messages if message["type"] == type_]
        return found if t is None else [data["d"] for data in found if data["t"] == t]

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.on("message", self._on_message)

    def _on_message(self, text: str) -> None:
        if text == "ping":
            self.pings += 1
            return
        message = json.loads(text)
        if message.get("label") != "rtvi-ai":
            self.signals.append(message)
            return
        self.messages.append(message)
        if message["type"] == "client-ready":
            self.say("bot-ready", version="2.2.0")

    async def _listen(self, track: MediaStreamTrack) -> None:
        async for _, samples in heard(track):
            self.heard.append(samples)
            del self.heard[:-500]


class Agent:
    """Serves the agent's two HTTP routes."""

    def __init__(self, app: FastAPI) -> None:
        self.reset()
        app.router.routes[:0] = [
            Route("/api/agent", self._describe),
            Route("/api/agent/offer", self._offer, methods=["POST"]),
        ]

    def reset(self) -> None:
        self.about: Message = {
            "stt": {"kind": "whisper", "name": "Whisper small", "message": None},
            "llm": {"kind": "openai", "name": "llama3.2", "message": None},
            "tts": {"kind": "agent_tts", "name": "tone", "message": None},
            "ice_servers": [],
            "level_db": -40.0,
        }
        # Accepted calls, in order.
        self.calls: list[Call] = []
        # The reply to an offer in place of a call, if set.
        self.refusal: Callable[[], Response] | None = None

    async def call(self, number: int = 1) -> Call:
        """The call with that number, once the page has sent its ready message."""
        async with asyncio.timeout(WAIT_S):
            while len(self.calls) < number or not self.calls[number - 1].of("client-ready"):
                await asyncio.sleep(0.01)
        return self.calls[number - 1]

    async def close(self) -> None:
        await asyncio.gather(*(call.close() for call in self.calls))

    async def _describe(self, _: Request) -> Response:
        return JSONResponse(self.about)

    async def _offer(self, request: Request) -> Response:
        if self.refusal is not None:
            return self.refusal()
        body = await request.json()
        call = Call(body.get("request_data") or {})
        self.calls.append(call)
        sdp = await call.answer(RTCSessionDescription(body["sdp"], body["type"]))
        return JSONResponse({"sdp": sdp, "type": "answer", "pc_id": f"pc-{len(self.calls)}"})


@asynccontextmanager
async def agent_of(app: FastAPI) -> AsyncIterator[Agent]:
    """An agent beside a node that does not run yet. Leaving the block ends its calls."""
    agent = Agent(app)
    try:
        yield agent
    finally:
        await agent.close()
