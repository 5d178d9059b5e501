"""One WebRTC client: speech on an Opus track, the protocol on a data channel."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import aiortc
from loguru import logger

from agent_tts.errors import Internal, SlowConsumer, UnsupportedProtocol
from agent_tts.messages import Audio
from agent_tts.protocol import v1 as protocol
from agent_tts.protocol.adapter import Command, Failed, Ping
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.access.guard import Client, Permit
from agent_tts.serve.node import Node
from agent_tts.serve.session import Session
from agent_tts.serve.transports import ice
from agent_tts.serve.transports.pace import Pace
from agent_tts.serve.transports.rtc_guard import PeerGuard
from agent_tts.serve.transports.rtc_sender import SpeechSender
from agent_tts.serve.transports.sdp import DEFAULT_MAX_MESSAGE, Offer
from agent_tts.speech.audio.track import SpeechTrack

CLOSE_S = 1.0  # for aiortc to take a connection down
LINGER_S = 1.0  # for the last messages of a closing session

MAX_BUFFERED = 262_144  # bytes of messages that wait for a client
MAX_STRAY_CHANNELS = 8  # data channels that are not the protocol's

# How long a client may be silent: one that has sent a `ping`, as the page does each second; and any other, whose
# receiver reports count too (libwebrtc sends them every 2.5 to 7.5 s).
PING_SILENCE_S = 4.0
RTCP_SILENCE_S = 10.0
CHECK_S = 0.5  # between two checks of its activity


class SpeechConnection:
    """The connection of one client: speech leaves on a track, messages pass both ways on a data channel.

    Args:
        wake: called when the track has room for more, and when all of it is played.
        on_room: called when the channel is open, and when it has room for more.
        on_message: called with each message on it.
        on_fault: called with the reason when the connection must end.
        label: the channel's; None: any. The first one counts, others are closed.
        microphone: whether the client's voice is received, if it sends some.
    """

    def __init__(
        self,
        node: Node,
        client: Client,
        wake: Callable[[], None],
        on_room: Callable[[], None],
        on_message: Callable[[str | bytes], None],
        on_fault: Callable[[str], None],
        *,
        label: str | None = None,
        microphone: bool = False,
    ) -> None:
        self.track = SpeechTrack(wake)
        config = aiortc.RTCConfiguration(ice.servers(node.settings), bundlePolicy=aiortc.RTCBundlePolicy.MAX_BUNDLE)
        self.connection = aiortc.RTCPeerConnection(config)
        # It has turns of the event loop for what comes in.
        flow = Flow(node.fair_queue.share(client.key_id))
        self._longest = node.settings.limits.message_bytes
        self.guard = PeerGuard(self.connection, node.metrics, flow, self._longest)
        # The channel, None until the client has opened it; when it must be there; how many others were opened.
        self.channel: aiortc.RTCDataChannel | None = None
        self._handshake_s = node.settings.timeouts.handshake_s
        self._channel_due = time.monotonic() + 3 * self._handshake_s
        self._strays = 0
        # When the client opened the channel or last sent a message, in monotonic seconds.
        self.alive_at = 0.0
        self._label, self._on_room, self._on_fault = label, on_room, on_fault
        # It is left at the end: a cycle would keep the peer.
        self._on_message = on_message
        self.connection.on("datachannel", self._take_channel)
        self.connection.on("connectionstatechange", self._on_state)
        # Sends the track, and receives its RTCP.
        direction = "sendrecv" if microphone else "sendonly"
        self._transceiver = self.connection.addTransceiver("audio", direction=direction)
        self._sender = SpeechSender(
            self._transceiver, self.track, node.packet_clock, node.metrics.rtc_lateness.observe, on_fault
        )

    @property
    def microphone(self) -> aiortc.MediaStreamTrack | None:
        """The client's voice; None before the answer, or if it sends none."""
        return self._transceiver.receiver.track

    async def answer(self, offer: Offer) -> str:
        """Negotiate; returns the SDP of the answer, with all of the node's candidates.

        After an error, such as `Internal` where it takes too long, or a cancellation the caller must `close`.
        """
        self.track.dtx = offer.dtx
        try:
            async with asyncio.timeout(self._handshake_s):
                await self.connection.setRemoteDescription(aiortc.RTCSessionDescription(sdp=offer.sdp, type="offer"))
                await self.connection.setLocalDescription(await self.connection.createAnswer())
        except TimeoutError:
            raise Internal("the answer to the offer took too long") from None
        return offer.answer(self.connection.localDescription.sdp)

    def gone(self, now: float) -> str | None:
        """Why the client cannot be reached; None if it can."""
        if self.guard.fault is not None:
            return self.guard.fault
        if self.channel is None:
            return "no data channel was opened" if now > self._channel_due else None
        is_silent = now - max(self.alive_at, self.guard.heard_at) > RTCP_SILENCE_S
        return "the client is gone" if is_silent else None

    def _on_state(self) -> None:
        if self.connection.connectionState in ("failed", "closed"):
            self._on_fault(f"the connection is {self.connection.connectionState}")

    def _take_channel(self, channel: aiortc.RTCDataChannel) -> None:
        if self.channel is not None or self._label not in (None, channel.label):
            if self._label is not None:
                error = UnsupportedProtocol(f"a peer speaks on one data channel, labelled {self._label}")
                for message in protocol.NativeAdapter().encode(Failed(None, error, fatal=True)):
                    channel.send(message)
            channel.close()
            self._strays += 1
            if self._strays > MAX_STRAY_CHANNELS:
                self._on_fault("the client opens too many data channels")
            return
        self.channel, self.alive_at = channel, time.monotonic()
        channel.bufferedAmountLowThreshold = MAX_BUFFERED // 2
        channel.on("bufferedamountlow", self._on_room)
        channel.on("message", self._take_message)
        channel.on("close", partial(self._on_fault, "the client closed its data channel"))
        self._on_room()

    def _take_message(self, data: str | bytes) -> None:
        self.alive_at = time.monotonic()
        if len(data if isinstance(data, bytes) else data.encode()) > self._longest:
            self._on_fault("a message is too long")
        else:
            self._on_message(data)

    async def close(self, name: str) -> None:
        """End everything in bounded time; `name` is for the log."""
        await self.guard.close(name, self.connection.close, CLOSE_S)
        self._on_message = _to_nobody


class RtcPeer:
    """One client over WebRTC: its connection, its track, its session, and the only task that closes them."""

    def __init__(self, node: Node, client: Client, permit: Permit) -> None:
        self._node = node
        self.client = client
        # Set when there may be something to send.
        self._wake = asyncio.Event()
        # Completed with the reason when the peer is to close.
        self._closing: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        wake, hang_up = self._wake.set, partial(_complete, self._closing)
        self._peer = SpeechConnection(node, client, wake, wake, self._on_message, hang_up, label=protocol.SUBPROTOCOL)
        self._track = self._peer.track
        # It has turns of the event loop for what it sends.
        self._sending = Flow(node.fair_queue.share(client.key_id))
        # Counts the client until the peer is closed.
        self._permit = permit
        self._session = Session(node, "rtc", playout=self._track, owner=permit.owner)
        self._adapter = protocol.NativeAdapter()
        self._session.waker = self._wake.set
        # Random, so that only its client can name the peer in DELETE.
        self.id = self._session.id
        self._adapter.max_message = DEFAULT_MAX_MESSAGE
        self._pings = False  # the client has sent a ping
        # Since when `MAX_BUFFERED` bytes or more wait for the client, or None; and how fast it takes them.
        self._full_since: float | None = None
        self._pace = Pace(node.settings.timeouts.write_s, time.monotonic())
        node.peers[self.id] = self
        # Watches the client, and closes everything in the end.
        self._task = asyncio.create_task(self._live(), name=f"peer {self.id}")

    async def answer(self, offer: Offer) -> str:
        """See `SpeechConnection.answer`."""
        self._adapter.max_message = offer.max_message
        return await self._peer.answer(offer)

    def hang_up(self, why: str) -> None:
        """Start closing the peer. Idempotent; the first reason counts."""
        _complete(self._closing, why)

    async def close(self) -> None:
        """Close the peer, and wait until all its tasks have ended. Idempotent. Cancelling the wait is safe."""
        self.hang_up("closed")
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait until the peer has closed for a reason of its own. Cancelling it is safe."""
        await asyncio.shield(self._task)

    async def _live(self) -> None:
        pump = asyncio.create_task(self._pump(), name=f"pump of peer {self.id}")
        pump.add_done_callback(lambda _: self.hang_up("the pump failed"))
        try:
            while (why := self._close_reason(time.monotonic())) is None:
                await asyncio.wait([self._closing], timeout=CHECK_S)
                self._session.expire()
            logger.info("rtc peer {} closes: {}", self.id, why)
        finally:
            pump.cancel()
            (fault,) = await asyncio.gather(pump, return_exceptions=True)
            if not isinstance(fault, asyncio.CancelledError):
                logger.error("rtc peer {}: its pump failed: {}", self.id, type(fault).__name__)
            self._session.close()
            await self._peer.close(f"rtc peer {self.id}")
            del self._node.peers[self.id]
            self._permit.close()

    def _close_reason(self, now: float) -> str | None:
        if self._closing.done():
            return self._closing.result()
        if (why := self._peer.gone(now)) is not None:
            return why
        if self._peer.channel is None:
            return None
        if self._pings and now - self._peer.alive_at > PING_SILENCE_S:
            return "the client is gone"
        self._pace.look(now, self._peer.channel.bufferedAmount)
        if self._full_since is not None and now >= self._pace.deadline(self._full_since):
            self._drop_slow("the client reads no messages")
            return self._closing.result()
        return None

    def _drop_slow(self, why: str) -> None:
        """Hang up on a client that does not read; it is counted once."""
        if not self._closing.done():
            self._node.metrics.refused.labels(SlowConsumer.code).inc()
            self.hang_up(why)

    def _on_message(self, data: str | bytes) -> None:
        if self._closing.done():
            return
        try:
            self._session.receive(self._seen(self._adapter.decode(data)), len(data))
        except SlowConsumer as error:
            self._drop_slow(error.message)

    def _seen(self, commands: Iterable[Command]) -> Iterator[Command]:
        for command in commands:
            self._pings = self._pings or isinstance(command, Ping)
            yield command

    async def _pump(self) -> None:
        while True:
            self._wake.clear()
            if (channel := self._peer.channel) is not None:
                async with self._sending:
                    self._send_some(channel)
                if self._session.closing is not None:
                    await self._linger(channel)
                    self.hang_up(self._session.closing[1])
            await self._wake.wait()

    def _send_some(self, channel: aiortc.RTCDataChannel) -> None:
        """Send a slice of what the session has; the wake is set if that was not all."""
        while channel.readyState == "open" and channel.bufferedAmount < MAX_BUFFERED:
            event = self._session.poll()
            if event is None:
                break
            if isinstance(event, Audio):
                self._track.write(event.context_no, event.payload)
            else:
                for message in self._adapter.encode(event):
                    channel.send(message)
                    self._pace.wrote(len(message))
            if not self._sending.has_time():
                self._wake.set()
                break
        if channel.bufferedAmount < MAX_BUFFERED:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = time.monotonic()

    async def _linger(self, channel: aiortc.RTCDataChannel) -> None:
        """Wait for the engine's last events, and send the last messages. aiortc does not tell when they are sent."""
        channel.bufferedAmountLowThreshold = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await asyncio.sleep(LINGER_S / 10)
                self._wake.set()
                while channel.bufferedAmount or self._wake.is_set():
                    await self._wake.wait()
                    self._wake.clear()
                    async with self._sending:
                        self._send_some(channel)
        await asyncio.sleep(LINGER_S / 10)


def _complete(closing: asyncio.Future[str], why: str) -> None:
    if not closing.done():
        closing.set_result(why)


def _to_nobody(data: str | bytes) -> None:
    """Where the messages of a closed connection go."""
