"""How a caller is connected: to a node's agent over WebRTC, or to a server of OpenAI's Realtime API."""

from __future__ import annotations

import asyncio
import base64
import fractions
import json
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import av
import httpx
import numpy as np
from aiortc import MediaStreamTrack
from aiortc.codecs.opus import OpusDecoder
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agent_tts.bench.people import RATE
from agent_tts.bench.quality import Samples
from agent_tts.bench.rtc_peer import Peer
from agent_tts.bench.statistics import background
from agent_tts.client.connection import ConnectionLost
from agent_tts.serve.transports.aiortc_private import ON_RTP_PACKET
from agent_tts.sound.silence import AUDIBLE_PEAK

PIECE = RATE // 50  # samples of what is sent at once
BLOCK = RATE // 100  # samples whose loudness is known
CONNECT_S = 30.0
TAIL_S = 0.2  # after the last audible 10 ms of an answer: a recogniser makes up words for a long silence
WAITING = 8  # pieces that wait for WebRTC's sender
OPUS_HZ = 48_000

Told = Literal["transcript", "answer", "interrupted", "left"]  # left: the caller did, during an answer


@dataclass(slots=True)
class AgentEvent:
    """What the agent tells of a conversation."""

    at: float  # on the monotonic clock
    kind: Told
    text: str = ""  # words of the user; of the answer as far as it was spoken; of it that were heard
    marks: dict[str, int] = field(default_factory=dict)  # of a node's answer: ms from the end of the user's speech


class AgentLine:
    """What came over a connection: sound, as a player that never waits plays it, and messages."""

    def __init__(self) -> None:
        self.told: list[AgentEvent] = []
        self.failures: list[str] = []
        # Sound, and when each piece begins to be heard.
        self.pieces: list[tuple[float, Samples]] = []
        # When each 10 ms above -50 dBFS begins to be heard.
        self.loud: list[float] = []
        # The end of what is to be heard.
        self.ends_at = 0.0

    async def send(self, piece: Samples) -> None:
        """PIECE samples of the caller's sound, which are due now."""
        raise NotImplementedError

    def tell(self, kind: Told, text: str = "") -> AgentEvent:
        self.told.append(AgentEvent(time.monotonic(), kind, text))
        return self.told[-1]

    def hear(self, samples: Samples, at: float) -> None:
        """Sound of the agent, to be heard at a time."""
        self.pieces.append((at, samples))
        peaks = np.abs(samples[: len(samples) // BLOCK * BLOCK].astype(np.int32)).reshape(-1, BLOCK).max(axis=1)
        self.loud += [at + number * BLOCK / RATE for number in np.flatnonzero(peaks > AUDIBLE_PEAK).tolist()]
        self.ends_at = at + len(samples) / RATE

    def loud_between(self, begin: float, end: float) -> list[float]:
        """When each audible 10 ms between two times began."""
        return self.loud[bisect_left(self.loud, begin) : bisect_left(self.loud, end)]

    def cut(self, now: float) -> None:
        """Nothing of what is to be heard from now on is."""
        self.loud = self.loud_between(0, now)
        self.pieces = [(at, part[: max(0, round((now - at) * RATE))]) for at, part in self.pieces]
        self.ends_at = min(self.ends_at, now)

    def sound(self, begin: float, end: float) -> Samples:
        """What was heard of pieces that began between two times, without the silence at its end."""
        loud = self.loud_between(begin, end)
        end = min(end, loud[-1] + TAIL_S) if loud else begin
        return np.concatenate([np.zeros(0, np.int16), *(part for at, part in self.pieces if begin <= at < end)])


class _PacedMicrophone(MediaStreamTrack):
    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.pieces: asyncio.Queue[Samples] = asyncio.Queue(WAITING)
        self._pts = 0

    async def recv(self) -> av.AudioFrame:
        samples = np.repeat(await self.pieces.get(), OPUS_HZ // RATE)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = OPUS_HZ, self._pts, fractions.Fraction(1, OPUS_HZ)
        self._pts += len(samples)
        return frame


class _NodeLine(AgentLine):
    """A call to a node's agent, as its page makes it. Sound counts when its packet comes: nothing is buffered."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._microphone = _PacedMicrophone()
        peer.connection.addTrack(self._microphone)
        peer.channel.on("message", self._on_message)
        self.ready = asyncio.Event()
        self._decoder = OpusDecoder()
        # The answer that is spoken.
        self._answer: AgentEvent | None = None
        (transceiver,) = peer.connection.getTransceivers()
        setattr(transceiver.receiver, ON_RTP_PACKET, self._on_packet)

    async def send(self, piece: Samples) -> None:
        await self._microphone.pieces.put(piece)

    async def _on_packet(self, packet: RtpPacket, arrival_time_ms: int) -> None:
        now = time.monotonic()
        for frame in self._decoder.decode(JitterFrame(packet.payload, packet.timestamp)):
            samples = frame.to_ndarray().reshape(-1, 2)  # pyrefly: ignore[missing-attribute]  # the engine's 24 kHz, twice
            self.hear(samples[:: OPUS_HZ // RATE, 0], now)

    def _on_message(self, raw: str) -> None:
        message = json.loads(raw)
        data = message.get("data") or {}
        match data.get("kind") if message.get("type") == "server-message" else message.get("type"):
            case "bot-ready":
                self.ready.set()
            case "user-transcription" if data.get("final"):
                self.tell("transcript", data["text"])
            case "turn":
                self._answer = self.tell("answer")
                self._answer.marks = data["marks"]
            case "bot-tts-text" if self._answer is not None:
                self._answer.text += f" {data['text']}"
            case "interrupted" if self._answer is not None:
                self._answer = None
                self.tell("interrupted", data["heard"])
            case "error" | "error-response":
                self.failures.append(str(data.get("error")))


@asynccontextmanager
async def node_line(url: str, key: str | None) -> AsyncIterator[AgentLine]:
    """A call to the agent of a node. Raises SpeechError: it is refused, or not connected in time."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    about = {"version": "2.0.0", "about": {"library": "agent-tts bench"}}
    peer = Peer("chat", "ping")
    line = _NodeLine(peer)
    try:
        try:
            async with (
                asyncio.timeout(CONNECT_S),
                httpx.AsyncClient(base_url=url, headers=headers, timeout=CONNECT_S) as client,
            ):
                await peer.connection.setLocalDescription(await peer.connection.createOffer())
                await peer.connect(client, "/api/agent/offer")
                peer.channel.send(json.dumps({"label": "rtvi-ai", "type": "client-ready", "id": "1", "data": about}))
                await line.ready.wait()
        except (httpx.HTTPError, TimeoutError) as error:
            raise ConnectionLost(f"the agent at {url} does not take a call: {type(error).__name__}") from None
        yield line
    finally:
        await peer.close()


class _RealtimeLine(AgentLine):
    """A session of the Realtime API; its player stops when the server hears speech, and tells how far it was."""

    def __init__(self, websocket: ClientConnection) -> None:
        super().__init__()
        self._websocket = websocket
        # Answers by their items, and when each began to be heard.
        self._answers: dict[str, AgentEvent] = {}
        self._began: dict[str, float] = {}
        self._item_id = ""  # of the one that came last
        # Of answers that were interrupted, by the item: the event that gets what of them was heard.
        self._heard: dict[str, AgentEvent] = {}

    async def ask(self, type_: str, **fields: Any) -> None:
        await self._websocket.send(json.dumps({"type": type_, **fields}))

    async def send(self, piece: Samples) -> None:
        await self.ask("input_audio_buffer.append", audio=base64.b64encode(piece.astype("<i2").tobytes()).decode())

    async def listen(self) -> None:
        try:
            async for raw in self._websocket:
                await self._take(json.loads(raw), time.monotonic())
            self.failures.append("the server ended the session")
        except WebSocketException as error:
            self.failures.append(f"the session is lost: {error}")

    async def _take(self, event: dict[str, Any], now: float) -> None:
        match event["type"]:
            case "input_audio_buffer.speech_started" if self.ends_at > now:
                await self._stop(self._item_id, now)
            case "response.output_audio.delta" | "response.audio.delta" if event["item_id"] not in self._heard:
                self._item_id, at = event["item_id"], max(now, self.ends_at)
                if self._began.setdefault(self._item_id, at) == at:
                    self._answer(self._item_id).at = now
                    self.told.append(self._answer(self._item_id))
                self.hear(np.frombuffer(base64.b64decode(event["delta"]), "<i2"), at)
            case "response.output_audio_transcript.delta" | "response.audio_transcript.delta":
                self._answer(event["item_id"]).text += event["delta"]
            case "conversation.item.input_audio_transcription.completed":
                self.tell("transcript", event["transcript"])
            case "conversation.item.retrieved" if heard := self._heard.get(event["item"]["id"]):
                heard.text = str(event["item"]["content"][0].get("transcript") or "")
            case "error":
                self.failures.append(str(event["error"].get("message")))

    def _answer(self, item_id: str) -> AgentEvent:
        return self._answers.setdefault(item_id, AgentEvent(0.0, "answer"))

    async def _stop(self, item_id: str, now: float) -> None:
        self.cut(now)
        self._heard[item_id] = self.tell("interrupted")
        played_ms = max(0, round((now - self._began[item_id]) * 1_000))
        await self.ask("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=played_ms)
        await self.ask("conversation.item.retrieve", item_id=item_id)


@asynccontextmanager
async def realtime_line(url: str, key: str | None) -> AsyncIterator[AgentLine]:
    """A session of a Realtime server that transcribes what it hears. Raises ConnectionLost."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with connect(url, additional_headers=headers, open_timeout=CONNECT_S, max_size=None) as websocket:
            line = _RealtimeLine(websocket)
            audio = {"input": {"transcription": {"model": "whisper-1"}}}
            await line.ask("session.update", session={"type": "realtime", "audio": audio})
            async with background(line.listen(), "realtime session"):
                yield line
    except (OSError, WebSocketException) as error:
        raise ConnectionLost(f"no session at {url}: {type(error).__name__}") from None
