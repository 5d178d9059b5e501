"""A WebRTC client of the node on aiortc alone: it shares no code with the package.

Run as a program, `python tests/rtc_peer.py URL PINGS`, it listens until it is killed, and prints the messages that it
receives; PINGS is 1 or 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from numpy.typing import NDArray

RATE = 48_000
LABEL = "agent_tts.v1"
LOUD = 300.0  # RMS of 20 ms from which on it counts as speech; full scale is 32 767


def rms(samples: NDArray[np.int16]) -> float:
    """RMS of the samples; 0 without samples."""
    return float(np.sqrt(np.mean(samples.astype(np.float64) ** 2))) if len(samples) else 0.0


async def heard(track: MediaStreamTrack) -> AsyncIterator[tuple[Any, NDArray[np.int16]]]:
    """The frames of a stereo track with the samples of one channel, until the track ends."""
    with contextlib.suppress(MediaStreamError):
        while True:
            frame: Any = await track.recv()
            yield frame, frame.to_ndarray().reshape(-1, 2)[:, 0].copy()


class Arrivals:
    """Base class to wait for a condition, which is checked after every arrival. The end of its block closes it."""

    PATIENCE_S = 10.0

    def __init__(self) -> None:
        # Set on every arrival.
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None: ...

    async def wait(self, what: Callable[[], Any], timeout_s: float | None = None) -> Any:
        """Wait until `what` returns a true value; return that value.

        Raises:
            TimeoutError: not within `timeout_s`, by default `PATIENCE_S`.
        """
        async with asyncio.timeout(self.PATIENCE_S if timeout_s is None else timeout_s):
            while not (value := what()):
                self._changed.clear()
                await self._changed.wait()
        return value


class WebRtcEnd(Arrivals):
    """One end of a connection, which listens to the other's track."""

    def __init__(self) -> None:
        super().__init__()
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.connection.on("track", self._on_track)
        # The task that reads the track.
        self._listener: asyncio.Task[None] | None = None

    async def offer(self) -> str:
        """The SDP of an offer with all candidates."""
        await self.connection.setLocalDescription(await self.connection.createOffer())
        return self.connection.localDescription.sdp

    async def close(self) -> None:
        await self.connection.close()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    def _on_track(self, track: MediaStreamTrack) -> None:
        self._listener = asyncio.ensure_future(self._listen(track))

    async def _listen(self, track: MediaStreamTrack) -> None: ...


class RtcPeer(WebRtcEnd):
    """One connection; keeps everything that arrives with its arrival time."""

    def __init__(self) -> None:
        super().__init__()
        self.connection.addTransceiver("audio", direction="recvonly")
        self.channel = self.connection.createDataChannel(LABEL)
        self.channel.on("message", self._on_message)
        self.channel.on("close", self._changed.set)
        # (arrival, message), in order.
        self.messages: list[tuple[float, dict[str, Any]]] = []
        # (arrival, pts, mono samples of 20 ms at 48 kHz).
        self.frames: list[tuple[float, int, NDArray[np.int16]]] = []
        # (arrival, samples) of those that are not silent.
        self._loud: list[tuple[float, NDArray[np.int16]]] = []
        self.session_id = ""

    # ------------------------------------------------------------ signalling

    async def accept(self, answer: dict[str, str]) -> None:
        """Apply the node's answer."""
        self.session_id = answer["session_id"]
        await self.connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))

    # ------------------------------------------------------------ messages

    def send(self, type_: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": type_, **fields}))

    def say(self, context_id: str, text: str, **options: Any) -> None:
        """Speak a text in a new context."""
        self.send("context.open", context_id=context_id, **options)
        self.send("text.append", context_id=context_id, text=text)
        self.send("context.end", context_id=context_id)

    async def message(self, type_: str, timeout_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        """The first message of a type with these fields; waits for it."""

        def find() -> dict[str, Any] | None:
            for _, message in self.messages:
                if message["type"] == type_ and all(message.get(name) == value for name, value in fields.items()):
                    return message
            return None

        found: dict[str, Any] = await self.wait(find, timeout_s)
        return found

    def arrival(self, type_: str, **fields: Any) -> float:
        """Arrival time of the first such message."""
        for at, message in self.messages:
            if message["type"] == type_ and all(message.get(name) == value for name, value in fields.items()):
                return at
        raise LookupError(type_)

    def _on_message(self, data: str) -> None:
        self.messages.append((time.monotonic(), json.loads(data)))
        self._changed.set()

    # ------------------------------------------------------------ sound

    async def _listen(self, track: MediaStreamTrack) -> None:
        async for frame, samples in heard(track):
            self.frames.append((time.monotonic(), frame.pts, samples))
            if rms(samples) > LOUD:
                self._loud.append((self.frames[-1][0], samples))
            self._changed.set()
        self._changed.set()

    def sound(self) -> NDArray[np.int16]:
        """All received samples."""
        return np.concatenate([np.zeros(0, np.int16), *(samples for _, _, samples in self.frames)])

    def loud(self) -> list[tuple[float, NDArray[np.int16]]]:
        """Frames that are not silent, with their arrival time."""
        return self._loud.copy()


@asynccontextmanager
async def connected(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[RtcPeer]:
    """A peer that has received the greeting."""
    async with RtcPeer() as peer:
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            reply = await client.post("/v1/rtc/offer", json={"sdp": await peer.offer(), "type": "offer"})
        if reply.status_code != 200:
            raise ConnectionRefusedError(f"{reply.status_code}: {reply.text}")
        await peer.accept(reply.json())
        await peer.message("session.created")
        yield peer


async def _listen_for_ever(url: str, pings: bool) -> None:
    async with connected(url) as peer:
        peer.say("t1", "a " * 1_000, voice="nova")
        await peer.wait(peer.loud)
        peer.send("ping", t=1) if pings else None
        print(peer.session_id, flush=True)
        while True:
            await asyncio.sleep(1)
            if pings:
                peer.send("ping", t=1)


if __name__ == "__main__":
    asyncio.run(_listen_for_ever(sys.argv[1], sys.argv[2] == "1"))
