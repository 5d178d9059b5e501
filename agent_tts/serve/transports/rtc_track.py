"""The audio of one WebRTC peer: an Opus packet every 20 ms, speech or silence, on the monotonic clock."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError

from agent_tts.events import SAMPLE_RATE
from agent_tts.speech.audio.opus import OpusEncoder

PACKET_MS = 20
PACKET_S = PACKET_MS / 1_000
PACKET_TICKS = 960  # of the 48 kHz clock that RTP gives Opus (RFC 7587)
TIME_BASE = Fraction(1, 48_000)

# Audio that waits here. It covers the jitter of the way from the engine; whatever is more stays in the engine's
# credit, where it costs nothing to cancel.
LEAD_MS = 240

# A packet that is later than this gives up its place in time: the listener hears a pause instead of living with the
# delay from then on. One that is less late catches up, at no more than twice the pace.
RESYNC_S = 0.2

# Opus silence: one CELT frame that says nothing but "silence". The switch to CELT and back makes a decoder forget the
# speech before, so that it decodes the next context, which begins with a fresh encoder, as if nothing had been before.
SILENCE = bytes([0xF8, 0xFF, 0xFE])

PACKET_BYTES = 2 * SAMPLE_RATE * PACKET_MS // 1_000  # of pcm
SILENT_PCM = bytes(PACKET_BYTES)

# What the encoder looks ahead, 6.5 ms: so much silence brings the last of the speech out of it.
LOOKAHEAD_PCM = bytes(2 * SAMPLE_RATE * 65 // 10_000)


class Pacer:
    """The grid that packets leave on. Pure: `now` is an argument, in seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        # When the next packet is due.
        self._due = now
        # Before this the next packet must not leave, however late it is: a burst would only fill the jitter buffer.
        self._not_before = now
        # RTP timestamp of the next packet.
        self._pts = 0

    def wait_s(self, now: float) -> float:
        """Seconds until the next packet leaves; not negative."""
        return max(0.0, max(self._due, self._not_before) - now)

    def leave(self, now: float) -> tuple[int, float]:
        """A packet leaves now: its RTP timestamp, and the seconds that it is late."""
        late_s = max(0.0, now - self._due)
        if late_s > RESYNC_S:
            skipped = int(late_s / PACKET_S)
            self._due += skipped * PACKET_S
            self._pts += skipped * PACKET_TICKS
        pts = self._pts
        self._pts += PACKET_TICKS
        self._due += PACKET_S
        self._not_before = now + PACKET_S / 2
        return pts, late_s


@dataclass(slots=True, eq=False)
class _ContextAudio:
    """The audio of one context. It is encoded when it is played: so the work of all peers is spread over time."""

    encoder: OpusEncoder = field(default_factory=OpusEncoder)
    pieces: deque[bytes] = field(default_factory=deque)  # pcm of a packet each, to be played
    rest: bytes = b""  # pcm that does not fill a packet yet
    samples: int = 0  # written, at 24 kHz
    played: int = 0  # packets handed to RTP
    ended: bool = False  # no more will be written

    def append(self, pcm: bytes) -> None:
        pcm = self.rest + pcm
        end = len(pcm) - len(pcm) % PACKET_BYTES
        self.pieces.extend(pcm[start : start + PACKET_BYTES] for start in range(0, end, PACKET_BYTES))
        self.rest = pcm[end:]

    def end(self) -> None:
        self.ended = True
        self.append(LOOKAHEAD_PCM)
        self.append(bytes(-len(self.rest) % PACKET_BYTES))

    @property
    def queued_ms(self) -> int:
        return len(self.pieces) * PACKET_MS

    @property
    def played_ms(self) -> int:
        return min(self.played * PACKET_MS, self.samples * 1_000 // SAMPLE_RATE)


class SpeechTrack(MediaStreamTrack):
    """Plays contexts one after another, in the order of their first audio, and silence when there is none.

    RTP never stops: a listener whose packets stop fills the hole with 120 to 175 ms of invented sound. It is the
    `Playout` of its peer's session.

    Args:
        on_room: called when a context's audio has run down to where more is wanted, and when all of it is played.
        on_late: told of each packet how many seconds it left late.
        clock: seconds, monotonic.
        sleep: as `asyncio.sleep`.
    """

    kind = "audio"

    def __init__(
        self,
        on_room: Callable[[], None],
        on_late: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__()
        self._on_room = on_room
        self._on_late = on_late
        self._clock = clock
        self._sleep = sleep
        # Made by the first `recv`: the grid begins when the connection is up.
        self._pacer: Pacer | None = None
        # Contexts with audio, by number; the first plays, the others wait.
        self._contexts: dict[int, _ContextAudio] = {}

    # ------------------------------------------------------------ the session's side

    def write(self, context_no: int, pcm: bytes) -> None:
        """Append audio of a context: pcm_s16le, 24 kHz, mono, of any length."""
        audio = self._contexts.setdefault(context_no, _ContextAudio())
        audio.samples += len(pcm) // 2
        audio.append(pcm)

    def end(self, context_no: int) -> None:
        """All audio of the context has been written; what waits is still played. Idempotent."""
        audio = self._contexts.get(context_no)
        if audio is not None and not audio.ended:
            audio.end()

    def clear(self, context_no: int) -> None:
        """Drop what was not played yet, at once; the next packet is silence, or another context's. Idempotent."""
        self._contexts.pop(context_no, None)

    def played_ms(self, context_no: int) -> int | None:
        """Audio of the context that has left for the listener; None when there is none, or all of it is over."""
        audio = self._contexts.get(context_no)
        return audio.played_ms if audio is not None and audio.played else None

    def wants(self, context_no: int) -> bool:
        """Whether more audio of the context is to be written now; `on_room` tells when it is again."""
        audio = self._contexts.get(context_no)
        return audio is None or audio.queued_ms < LEAD_MS

    def is_playing(self, context_no: int) -> bool:
        """Whether audio of the context waits; `on_room` tells when it does not any more."""
        audio = self._contexts.get(context_no)
        return audio is not None and audio.queued_ms > 0

    # ------------------------------------------------------------ RTP's side

    async def recv(self) -> av.Packet[Any]:
        """The next packet, when it is due: 20 ms of Opus on the 48 kHz clock. Cancelling it loses nothing.

        Raises:
            MediaStreamError: the track was stopped.
        """
        if self.readyState != "live":
            raise MediaStreamError
        now = self._clock()
        if self._pacer is None:
            self._pacer = Pacer(now)
        await self._sleep(self._pacer.wait_s(now))
        pts, late_s = self._pacer.leave(self._clock())
        self._on_late(late_s)
        packet = av.Packet(self._next())
        packet.pts, packet.time_base = pts, TIME_BASE
        return packet

    def _next(self) -> bytes:
        while self._contexts:
            context_no, audio = next(iter(self._contexts.items()))
            if audio.pieces:
                return self._play(audio)
            if not audio.ended:
                # The engine is late, or waits for text. Silence from the context's own encoder keeps the listener's
                # decoder in step with it, so that speech goes on without a blemish.
                return audio.encoder.encode(SILENT_PCM)[0]
            del self._contexts[context_no]
        return SILENCE

    def _play(self, audio: _ContextAudio) -> bytes:
        (packet,) = audio.encoder.encode(audio.pieces.popleft())
        audio.played += 1
        if audio.queued_ms in (0, LEAD_MS - PACKET_MS):
            self._on_room()
        return packet
