"""Opus packets of speech, for WebRTC and for WebSockets."""

from __future__ import annotations

from fractions import Fraction

import av

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.sound.ffmpeg import audio_frame

BIT_RATE = 32_000  # bits per second of mono speech in 80 ms packets, variable

# Packets have 20 ms. Complexity 1 (of 10) takes 0.5 of the CPU of 5; with FEC, libopus needs 39 kb/s for it to keep the
# band above 8 kHz. Speech is as good as with 5 at 32 kb/s, where 2 and 3 are worse.
RTP_COMPLEXITY = 1
RTP_BIT_RATE = 40_000

# Audio bandwidth in Hz by the listener's rate. libopus always gets 24 kHz; the rate only limits the bandwidth.
BANDWIDTH = {8_000: 4_000, 16_000: 8_000, 24_000: 12_000, 48_000: 12_000}

RELIABLE_MS = 80


class OpusEncoder:
    """Encodes pcm_s16le, 24 kHz, mono, in pieces of any size, to raw Opus packets (RFC 6716, not Ogg).

    20 ms packets are for RTP: `voip` with in-band FEC for 10 % loss; 4 ms of CPU per second of audio; the decoder's
    output lags 6.5 ms. 80 ms packets are for a reliable transport: `lowdelay`; 2.5 ms of CPU per second of audio; the
    decoder's output lags 2.5 ms.

    Args:
        sample_rate: Hz at which the listener decodes: 8 000, 16 000, 24 000 or 48 000.
        packet_ms: 20 or 80; the length of every packet.
    """

    def __init__(self, sample_rate: int = SAMPLE_RATE, packet_ms: int = 20) -> None:
        # Samples per packet at the listener's rate.
        self.packet_samples = sample_rate * packet_ms // 1_000
        self._packet_bytes = 2 * SAMPLE_RATE * packet_ms // 1_000
        # pcm of an incomplete packet.
        self._rest = b""
        codec = av.CodecContext.create("libopus", "w")
        assert isinstance(codec, av.AudioCodecContext)
        codec.sample_rate, codec.format, codec.layout = SAMPLE_RATE, "s16", "mono"
        codec.time_base = Fraction(1, SAMPLE_RATE)
        codec.bit_rate = RTP_BIT_RATE if packet_ms < RELIABLE_MS else BIT_RATE
        codec.options = {"vbr": "on", "frame_duration": str(packet_ms), "cutoff": str(BANDWIDTH[sample_rate])}
        if packet_ms < RELIABLE_MS:
            codec.options |= {"application": "voip", "fec": "1", "packet_loss": "10"}
            codec.options |= {"compression_level": str(RTP_COMPLEXITY)}
        else:
            codec.options |= {"application": "lowdelay"}
        codec.thread_count = 1  # otherwise FFmpeg starts one thread per core for each encoder
        codec.open()
        self._codec = codec
        # The input of each packet in turn: a new one costs 4 % of the encoding.
        self._frame = audio_frame(bytes(self._packet_bytes))
        (self._plane,) = self._frame.planes

    def encode(self, pcm: bytes) -> list[bytes]:
        """The packets that `pcm` completes, each `packet_ms` long. `pcm` holds whole samples."""
        pcm = self._rest + pcm if self._rest else pcm
        end = len(pcm) - len(pcm) % self._packet_bytes
        self._rest = pcm[end:]
        return [self._packet(pcm[start : start + self._packet_bytes]) for start in range(0, end, self._packet_bytes)]

    def flush(self) -> list[bytes]:
        """The last packet, padded with silence; none if the audio ended at a packet boundary."""
        if not self._rest:
            return []
        return self.encode(bytes(self._packet_bytes - len(self._rest)))

    def _packet(self, pcm: bytes) -> bytes:
        self._plane.update(pcm)
        (packet,) = self._codec.encode(self._frame)
        return bytes(packet)
