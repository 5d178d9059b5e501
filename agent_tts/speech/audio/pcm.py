"""PCM for clients: resamples the engine's 24 kHz pcm_s16le and converts it to floats or G.711."""

from __future__ import annotations

import functools
from typing import Literal

import av
import numpy as np
from numpy.typing import NDArray

from agent_tts.engine_info import FRAME_BYTES, FRAME_MS, SAMPLE_RATE
from agent_tts.sound.ffmpeg import FilterStream, audio_frame

PcmEncoding = Literal["pcm_s16le", "pcm_f32le", "mulaw", "alaw"]

# Taps of libswresample's filter at the lower of the two rates. The delay is half of them: 1.75 ms to 8 kHz, 0.9 ms
# to 16 kHz, 0.6 ms to all other rates. Images are 65 dB down from 1.15 times the new Nyquist frequency.
FILTER_TAPS = 28


class Transcoder:
    """Converts pcm_s16le, 24 kHz, mono, in pieces of any size, to `encoding` at `sample_rate`.

    The output does not depend on the split of the input, and samples are not shifted in time. Resampling delays under
    2 ms until the next piece or `flush`, and gives nothing for input under 3.4 ms in total. At 24 kHz nothing is
    delayed, and pcm_s16le is returned unchanged (the same object).
    """

    def __init__(self, encoding: PcmEncoding, sample_rate: int) -> None:
        # libswresample as a filter, because `av.AudioResampler` cannot set its length. None without resampling.
        resample = ("aresample", f"{sample_rate}:filter_size={FILTER_TAPS}")
        self._resampler = None if sample_rate == SAMPLE_RATE else FilterStream(resample)
        self._chunk_samples = sample_rate * FRAME_MS // 1_000
        # Output value for each pcm_s16le value, indexed by its bits as a u16; None for pcm_s16le.
        self._codes = None if encoding == "pcm_s16le" else _floats() if encoding == "pcm_f32le" else _g711(encoding)

    def encode(self, pcm: bytes) -> list[tuple[bytes, int]]:
        """Payloads of at most 80 ms, with their numbers of samples. `pcm` holds whole samples."""
        if len(pcm) <= FRAME_BYTES and self._resampler is None and self._codes is None:
            return [(pcm, len(pcm) // 2)] if pcm else []
        if self._resampler is not None and pcm:
            pcm = self._resampler.push(pcm)
        return self._chunk(pcm)

    def flush(self) -> list[tuple[bytes, int]]:
        """The rest, at the end of the audio. Do not encode after it."""
        return self._chunk(b"" if self._resampler is None else self._resampler.push(None))

    def _chunk(self, pcm: bytes) -> list[tuple[bytes, int]]:
        samples, most = len(pcm) // 2, self._chunk_samples
        if not samples:
            return []
        payload = pcm if self._codes is None else self._codes[np.frombuffer(pcm, "<u2")].tobytes()
        if samples <= most:
            return [(payload, samples)]
        size = len(payload) // samples
        starts = range(0, samples, most)
        return [(payload[start * size : (start + most) * size], min(most, samples - start)) for start in starts]


@functools.cache
def _floats() -> NDArray[np.float32]:
    """Every pcm_s16le value scaled to -1 .. 1, float32 [65536]."""
    return np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.float32) / np.float32(32_768)


@functools.cache
def _g711(encoding: str) -> NDArray[np.uint8]:
    """The G.711 code of every pcm_s16le value, uint8 [65536]. G.711 has no state, so a table suffices."""
    codec = av.CodecContext.create(f"pcm_{encoding}", "w")
    assert isinstance(codec, av.AudioCodecContext)
    codec.sample_rate, codec.format, codec.layout = SAMPLE_RATE, "s16", "mono"
    packets = codec.encode(audio_frame(np.arange(65_536, dtype="<u2").tobytes()))
    return np.frombuffer(b"".join(bytes(packet) for packet in packets), np.uint8)


@functools.cache
def g711_samples(encoding: str) -> NDArray[np.int16]:
    """The sample of every G.711 code, int16 [256]."""
    codec = av.CodecContext.create(f"pcm_{encoding}", "r")
    assert isinstance(codec, av.AudioCodecContext)
    codec.sample_rate, codec.layout = 8_000, "mono"
    frames = codec.decode(av.Packet(bytes(range(256))))
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames]).astype(np.int16)
