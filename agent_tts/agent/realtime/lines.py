"""How a realtime session reaches its client: by a WebSocket, or by WebRTC with a track for each side's voice.

Both lines have `receive`, `room`, `send`, `cut` and `close`, as `WebSocketLine` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping

import av
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError
from starlette.types import Send
from starlette.websockets import WebSocket

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SlowConsumer
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.access.guard import Client
from agent_tts.serve.connections import CONNECTION
from agent_tts.serve.node import Node
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports.rtc_peer import MAX_BUFFERED, SpeechConnection
from agent_tts.serve.transports.sdp import Offer
from agent_tts.serve.transports.uvicorn_protocols import WebSocketProtocol
from agent_tts.serve.transports.websocket import next_message
from agent_tts.serve.transports.writer import Writer

MAX_MESSAGES = 256  # that wait to be read; a client that sends more is hung up on
MAX_VOICE_S = 5.0  # of the user that waits to be heard; older is dropped
MAX_AUDIO_MESSAGE = 1 << 20  # bytes: 16 s of audio
# Messages of one session; faster ones wait in the client. Audio comes in 10 to 100 a second. Each may have the models
# work and be answered by several.
MESSAGES_PER_S, MESSAGES_BURST = 250, 1_000


class WebSocketLine:
    """A client on a WebSocket that was accepted."""

    def __init__(self, node: Node, websocket: WebSocket, send: Send, client: Client) -> None:
        self._websocket = websocket
        self._write_s = node.settings.timeouts.write_s
        self._writer = Writer(websocket.scope, send, node.settings.timeouts)
        self._connection: WebSocketProtocol = websocket.scope["extensions"][CONNECTION]
        self._connection.turns = Flow(node.fair_queue.share(client.key_id))
        self._connection.take_messages_of(max(MAX_AUDIO_MESSAGE, node.settings.limits.message_bytes))
        self._clock = asyncio.get_running_loop().time
        self._allowed = TokenBucket(MESSAGES_PER_S, MESSAGES_BURST, self._clock())

    async def receive(self) -> str | bytes | None:
        """The next message; None when the client has left."""
        return await next_message(self._websocket, self._allowed, self._clock)

    async def room(self) -> None:
        """Wait until a message can be sent. Raises OSError: the client has left; `SlowConsumer`: it reads nothing."""
        await self._writer.room()

    def send(self, texts: list[str], size: int) -> None:
        """Send messages of so many characters; to be called after `room`."""
        self._connection.write(texts)
        self._writer.wrote(size, 0.0)

    def cut(self) -> None:
        """End the connection at once."""
        self._writer.cut()

    async def close(self, code: int) -> None:
        """End the connection in order, with a WebSocket's close code."""
        with contextlib.suppress(Exception):  # the client may be gone
            async with asyncio.timeout(self._write_s):
                await self._websocket.close(code)


class RtcLine:
    """A client that has sent an offer. Its `SpeechConnection` holds it, so its owner clears it in the end."""

    def __init__(self, node: Node, client: Client) -> None:
        # Called when sound may have been played to its end.
        self.on_played: Callable[[], None] = lambda: None
        self._timeouts = node.settings.timeouts
        # Bytes that the client takes in one message.
        self._most = 0
        # Messages that were not read yet, at most `MAX_MESSAGES`; None behind the last.
        self._messages: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        # The user's voice, pcm; set when there is more of it, or an end.
        self._voice: deque[bytes] = deque(maxlen=round(MAX_VOICE_S / 0.02))  # of packets of 20 ms
        self._has_voice = asyncio.Event()
        # Set when there may be room for more messages, or an end.
        self._has_room = asyncio.Event()
        # Responses that the track has, and whether it has all of one.
        self._given: dict[str, bool] = {}
        # Why the client is lost; None while it is not.
        self._lost: str | None = None
        self._peer = SpeechConnection(
            node, client, lambda: self.on_played(), self._has_room.set, self._on_message, self._lose, microphone=True
        )
        # Takes the client's voice; None before the answer, or if it sends none.
        self._listener: asyncio.Task[None] | None = None

    async def answer(self, offer: Offer) -> str:
        """The answer to the client's offer. After an error the caller must `close`."""
        self._most = offer.max_message
        answer = await self._peer.answer(offer)
        if self._peer.microphone is not None:
            self._listener = asyncio.create_task(self._listen(self._peer.microphone), name="listener of a line")
            self._listener.add_done_callback(lambda _: self._lose("the client's voice has ended"))
        return answer

    # ------------------------------------------------------------ messages

    async def receive(self) -> str | bytes | None:
        return await self._messages.get()

    async def room(self) -> None:
        while self._lost is None and (
            (channel := self._peer.channel) is None or channel.bufferedAmount >= MAX_BUFFERED
        ):
            self._has_room.clear()
            try:
                async with asyncio.timeout(None if channel is None else self._timeouts.write_s):
                    await self._has_room.wait()
            except TimeoutError:
                raise SlowConsumer("the client reads no messages") from None
        if self._lost is not None:
            raise ConnectionError(self._lost)

    def send(self, texts: list[str], size: int) -> None:
        channel = self._peer.channel
        assert channel is not None, "there is room"
        for text in texts:
            if len(text.encode()) > self._most:
                self._lose("a message is too long for the client")
            elif channel.readyState == "open":
                channel.send(text)

    def cut(self) -> None:
        self._lose("cut")

    async def close(self, code: int) -> None:
        self._lose("closed")
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        await self._peer.close("a realtime call")

    def gone(self) -> str | None:
        """Why the client cannot be reached any more; None if it can."""
        return self._lost or self._peer.gone(time.monotonic())

    def _lose(self, why: str) -> None:
        """The first reason counts."""
        self._lost = self._lost or why
        self._messages.put_nowait(None)
        self._has_voice.set()
        self._has_room.set()

    def _on_message(self, data: str | bytes) -> None:
        if self._messages.qsize() == MAX_MESSAGES:
            self._lose("the client sends too much")
        elif self._lost is None:
            self._messages.put_nowait(data)

    # ------------------------------------------------------------ sound

    async def voice(self) -> bytes | None:
        """More of the user's voice, 24 kHz pcm_s16le; None when the client has left."""
        while not self._voice and self._lost is None:
            self._has_voice.clear()
            await self._has_voice.wait()
        pcm = b"".join(self._voice)
        self._voice.clear()
        return pcm or None

    async def _listen(self, microphone: MediaStreamTrack) -> None:
        """Take what aiortc decodes, always: it would keep all of it."""
        resampler = av.AudioResampler("s16", "mono", SAMPLE_RATE)
        with contextlib.suppress(MediaStreamError):  # its end
            while True:
                frame = await microphone.recv()
                assert isinstance(frame, av.AudioFrame)
                self._voice.extend(made.to_ndarray().tobytes() for made in resampler.resample(frame))
                self._has_voice.set()

    def play(self, response_id: str, pcm: bytes) -> None:
        """Play more of a response, 24 kHz pcm_s16le."""
        self._given.setdefault(response_id, False)
        self._peer.track.write(response_id, pcm)

    def end(self, response_id: str) -> None:
        """All of a response was given to `play`, if any. Idempotent."""
        if response_id in self._given:
            self._given[response_id] = True
            self._peer.track.end(response_id)

    def hush(self) -> Mapping[str, int]:
        """Drop what was not played; returns how much was of each response that was playing or waiting, ms."""
        played = {response_id: self._peer.track.played_ms(response_id) or 0 for response_id in self._given}
        for response_id in played:
            self._peer.track.clear(response_id)
        self._given.clear()
        return played

    def played(self) -> list[str]:
        """Responses that were played to their end since the last call."""
        over = [each for each, is_whole in self._given.items() if is_whole and not self._peer.track.is_playing(each)]
        for response_id in over:
            del self._given[response_id]
        return over
