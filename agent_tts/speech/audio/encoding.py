"""The encoders of all encodings and sample rates, behind one interface: Opus packets, PCM and G.711, files."""

from __future__ import annotations

import functools
import weakref
from fractions import Fraction
from typing import Literal, cast

import av
import numpy as np
from numpy.typing import NDArray

from agent_tts.engine_info import FRAME_BYTES, FRAME_MS, SAMPLE_RATE
from agent_tts.protocol.options import check_format
from agent_tts.sound.ffmpeg import FilterStream, audio_frame
from agent_tts.speech.audio.files import Muxer

Chunk = tuple[bytes, int]  # payload of one message, and its samples at the output rate


def make_encoder(encoding: str, sample_rate: int, bit_rate: int | None = None) -> Encoder:
    """An encoder for one utterance; raises the errors of `check_format`.

    opus: each chunk is one 80 ms packet, the last padded with silence. ogg_opus and mp3: a chunk is the file's next
    bytes, and its samples are those that were encoded. Others: one chunk for each piece of pcm.

    Args:
        bit_rate: bits per second of ogg_opus and mp3, rounded to a supported one; None is 48 000 and 64 000.
    """
    check_format(encoding, sample_rate)
    if encoding == "opus":
        return OpusEncoder(sample_rate, RELIABLE_MS)
    if encoding == "ogg_opus":
        return _FileChunks(Muxer("opus", SAMPLE_RATE, bit_rate), SAMPLE_RATE, sample_rate // SAMPLE_RATE)
    if encoding == "mp3":
        return _FileChunks(Muxer("mp3", sample_rate, bit_rate), sample_rate)
    return Transcoder(cast(PcmEncoding, encoding), sample_rate)


class _FileChunks:
    """A file's bytes, with the samples encoded since the last chunk: `scale` of the output for each sample of pcm."""

    def __init__(self, muxer: Muxer, sample_rate: int, scale: int = 1) -> None:
        self._muxer = muxer
        self._pcm = Transcoder("pcm_s16le", sample_rate)
        self._scale = scale
        # Samples encoded and not reported yet.
        self._samples = 0
        # Frees an unfinished encoder's memory when it is garbage-collected.
        self._drop = weakref.finalize(self, muxer.drop)
        self._drop.atexit = False

    def encode(self, pcm: bytes) -> list[Chunk]:
        return self._chunk(self._mux(self._pcm.encode(pcm)))

    def flush(self) -> list[Chunk]:
        rest = self._mux(self._pcm.flush()) + (self._muxer.close() if self._drop.detach() else b"")
        return self._chunk(rest)

    def _mux(self, pieces: list[Chunk]) -> bytes:
        self._samples += sum(samples for _, samples in pieces) * self._scale
        return b"".join(self._muxer.encode(pcm) for pcm, _ in pieces)

    def _chunk(self, body: bytes) -> list[Chunk]:
        if not body:
            return []
        samples, self._samples = self._samples, 0
        return [(body, samples)]


# ---------------------------------------------------------------- Opus packets, for WebRTC and for WebSockets

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
        self._packet_samples = sample_rate * packet_ms // 1_000
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

    def encode(self, pcm: bytes) -> list[Chunk]:
        """The packets that `pcm` completes, each `packet_ms` long. `pcm` holds whole samples."""
        pcm = self._rest + pcm if self._rest else pcm
        end = len(pcm) - len(pcm) % self._packet_bytes
        self._rest = pcm[end:]
        return [self._packet(pcm[start : start + self._packet_bytes]) for start in range(0, end, self._packet_bytes)]

    def flush(self) -> list[Chunk]:
        """The last packet, padded with silence; none if the audio ended at a packet boundary."""
        if not self._rest:
            return []
        return self.encode(bytes(self._packet_bytes - len(self._rest)))

    def _packet(self, pcm: bytes) -> Chunk:
        self._plane.update(pcm)
        (packet,) = self._codec.encode(self._frame)
        return bytes(packet), self._packet_samples


# ---------------------------------------------------------------- PCM and G.711

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

    def encode(self, pcm: bytes) -> list[Chunk]:
        """Payloads of at most 80 ms, with their numbers of samples. `pcm` holds whole samples."""
        if len(pcm) <= FRAME_BYTES and self._resampler is None and self._codes is None:
            return [(pcm, len(pcm) // 2)] if pcm else []
        if self._resampler is not None and pcm:
            pcm = self._resampler.push(pcm)
        return self._chunk(pcm)

    def flush(self) -> list[Chunk]:
        """The rest, at the end of the audio. Do not encode after it."""
        return self._chunk(b"" if self._resampler is None else self._resampler.push(None))

    def _chunk(self, pcm: bytes) -> list[Chunk]:
        samples, most = len(pcm) // 2, self._chunk_samples
        if not samples:
            return []
        payload = pcm if self._codes is None else self._codes[np.frombuffer(pcm, "<u2")].tobytes()
        if samples <= most:
            return [(payload, samples)]
        size = len(payload) // samples
        starts = range(0, samples, most)
        return [(payload[start * size : (start + most) * size], min(most, samples - start)) for start in starts]


# Each encodes pcm_s16le, 24 kHz, mono, of whole samples; the output does not depend on the split of the input.
Encoder = OpusEncoder | Transcoder | _FileChunks


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
