"""The audio of one WebRTC peer: one Opus packet for every 20 ms, speech or silence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.speech.audio.encoding import OpusEncoder
from agent_tts.speech.audio.packet_clock import PACKET_MS

# Audio that waits here. It covers jitter on the way from the engine; further audio stays in the engine's credit window,
# where it costs nothing to cancel.
LEAD_MS = 240

# Opus silence: one CELT frame with only the silence flag. The switch to CELT and back resets the decoder, which the
# next context needs: it begins with a fresh encoder.
SILENCE = bytes([0xF8, 0xFF, 0xFE])

# For a listener with DTX, silence becomes this after some packets: the first byte of an Opus packet alone, after which
# the decoder is silent without packets. It is repeated, as by an encoder.
DTX = SILENCE[:1]
DTX_AFTER = 5  # packets of silence; the loss of all of them is unlikely
DTX_EVERY = 400 // PACKET_MS

PACKET_BYTES = 2 * SAMPLE_RATE * PACKET_MS // 1_000  # of pcm
SILENT_PCM = bytes(PACKET_BYTES)

# Silence of the encoder's look-ahead, 6.5 ms: it moves the end of the speech out of the encoder.
LOOKAHEAD_PCM = bytes(2 * SAMPLE_RATE * 65 // 10_000)


@dataclass(slots=True, eq=False)
class _ContextAudio:
    """The audio of one context, encoded when it is played: that spreads the work of all peers over time."""

    encoder: OpusEncoder = field(default_factory=OpusEncoder)
    pieces: deque[bytes] = field(default_factory=deque)  # pcm of one packet each, not played yet
    rest: bytes = b""  # pcm of an incomplete packet
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


class SpeechTrack:
    """Plays contexts one after another, in the order of their first audio; silence between them.

    Without DTX packets never stop: a listener's decoder would make up 120 to 175 ms of sound.

    Args:
        on_room: called when a context wants more audio, and when all of its audio is played.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        # Whether the listener prefers to get few packets in silence; set before the first.
        self.dtx = False
        # Packets of silence between contexts since the last of a context.
        self._silent = 0
        self._contexts: dict[Hashable, _ContextAudio] = {}

    def write(self, context: Hashable, pcm: bytes) -> None:
        """Append audio of a context: pcm_s16le, 24 kHz, mono, of any length."""
        audio = self._contexts.get(context)
        if audio is None:
            audio = self._contexts[context] = _ContextAudio()
        audio.samples += len(pcm) // 2
        audio.append(pcm)

    def end(self, context: Hashable) -> None:
        """All audio of the context has been written. The rest of it is still played. Idempotent."""
        audio = self._contexts.get(context)
        if audio is not None and not audio.ended:
            audio.end()

    def clear(self, context: Hashable) -> None:
        """Drop all audio that was not played. Idempotent."""
        self._contexts.pop(context, None)

    def played_ms(self, context: Hashable) -> int | None:
        """Milliseconds of the context that were sent; None before the first, and after the end."""
        audio = self._contexts.get(context)
        return audio.played_ms if audio is not None and audio.played else None

    def wants(self, context: Hashable) -> bool:
        """Whether more audio of the context may be written now; `on_room` is called when it may be again."""
        audio = self._contexts.get(context)
        return audio is None or audio.queued_ms < LEAD_MS

    def is_playing(self, context: Hashable) -> bool:
        """Whether audio of the context waits; `on_room` is called when none does."""
        audio = self._contexts.get(context)
        return audio is not None and audio.queued_ms > 0

    def next_packet(self) -> bytes | None:
        """The next 20 ms, in Opus: they are played with this call. None: nothing is to be sent."""
        packet = self._speech()
        if packet is not None:
            self._silent = 0
            return packet
        self._silent += 1
        if not self.dtx or self._silent <= DTX_AFTER:
            return SILENCE
        return DTX if (self._silent - DTX_AFTER) % DTX_EVERY == 1 else None

    def _speech(self) -> bytes | None:
        """The next 20 ms of the contexts; None without any."""
        while self._contexts:
            context, audio = next(iter(self._contexts.items()))
            if audio.pieces:
                return self._play(audio)
            if not audio.ended:
                # The engine is late, or waits for text. Silence from the same encoder keeps the listener's decoder in
                # step with it.
                return audio.encoder.encode(SILENT_PCM)[0][0]
            del self._contexts[context]
        return None

    def _play(self, audio: _ContextAudio) -> bytes:
        ((packet, _),) = audio.encoder.encode(audio.pieces.popleft())
        audio.played += 1
        if audio.queued_ms in (0, LEAD_MS - PACKET_MS):
            self._on_room()
        return packet
