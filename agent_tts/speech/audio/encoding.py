"""One interface to the encoders of all encodings and sample rates."""

from __future__ import annotations

import weakref
from typing import Protocol, cast

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.protocol.options import check_format
from agent_tts.speech.audio.files import Muxer
from agent_tts.speech.audio.opus import RELIABLE_MS, OpusEncoder
from agent_tts.speech.audio.pcm import PcmEncoding, Transcoder

Chunk = tuple[bytes, int]  # payload of one message, and its samples at the output rate


class Encoder(Protocol):
    """Encodes pcm_s16le, 24 kHz, mono, to chunks. The output does not depend on the split of the input."""

    def encode(self, pcm: bytes) -> list[Chunk]:
        """Chunks that can be sent now. `pcm` holds whole samples."""

    def flush(self) -> list[Chunk]:
        """The rest, at the end of the audio. Do not encode after it."""


def make_encoder(encoding: str, sample_rate: int, bit_rate: int | None = None) -> Encoder:
    """An encoder for one utterance; raises the errors of `check_format`.

    opus: each chunk is one 80 ms packet, the last padded with silence. ogg_opus and mp3: a chunk is the file's next
    bytes, and its samples are those that were encoded. Others: one chunk for each piece of pcm.

    Args:
        bit_rate: bits per second of ogg_opus and mp3, rounded to a supported one; None is 48 000 and 64 000.
    """
    check_format(encoding, sample_rate)
    if encoding == "opus":
        return _OpusChunks(OpusEncoder(sample_rate, RELIABLE_MS))
    if encoding == "ogg_opus":
        return _FileChunks(Muxer("opus", SAMPLE_RATE, bit_rate), SAMPLE_RATE, sample_rate // SAMPLE_RATE)
    if encoding == "mp3":
        return _FileChunks(Muxer("mp3", sample_rate, bit_rate), sample_rate)
    return Transcoder(cast(PcmEncoding, encoding), sample_rate)


class _OpusChunks:
    def __init__(self, opus: OpusEncoder) -> None:
        self._opus = opus

    def encode(self, pcm: bytes) -> list[Chunk]:
        return [(packet, self._opus.packet_samples) for packet in self._opus.encode(pcm)]

    def flush(self) -> list[Chunk]:
        return [(packet, self._opus.packet_samples) for packet in self._opus.flush()]


class _FileChunks:
    """A file's bytes, with the samples encoded since the last chunk: `scale` of the output for each sample of pcm."""

    def __init__(self, muxer: Muxer, sample_rate: int, scale: int = 1) -> None:
        self._muxer = muxer
        self._pcm = Transcoder("pcm_s16le", sample_rate)
        self._scale = scale
        # Samples encoded and not reported yet.
        self._samples = 0
        # Closes the muxer at the end, or when an unfinished encoder is garbage-collected.
        self._close = weakref.finalize(self, muxer.close)
        self._close.atexit = False

    def encode(self, pcm: bytes) -> list[Chunk]:
        return self._chunk(self._mux(self._pcm.encode(pcm)))

    def flush(self) -> list[Chunk]:
        return self._chunk(self._mux(self._pcm.flush()) + (self._close() or b""))

    def _mux(self, pieces: list[Chunk]) -> bytes:
        self._samples += sum(samples for _, samples in pieces) * self._scale
        return b"".join(self._muxer.encode(pcm) for pcm, _ in pieces)

    def _chunk(self, body: bytes) -> list[Chunk]:
        if not body:
            return []
        samples, self._samples = self._samples, 0
        return [(body, samples)]
