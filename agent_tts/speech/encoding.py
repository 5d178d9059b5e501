"""Audio as a client wants it: one interface for every encoding and rate."""

from __future__ import annotations

from typing import Protocol, cast

from agent_tts.errors import UnsupportedFormat
from agent_tts.speech.opus import RELIABLE_MS, OpusEncoder
from agent_tts.speech.pcm import PcmEncoding, Transcoder

ENCODINGS = ("pcm_s16le", "pcm_f32le", "mulaw", "alaw", "opus")
SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
OPUS_RATES = (8_000, 16_000, 24_000, 48_000)

Chunk = tuple[bytes, int]  # a payload for one message, and its number of samples at the output rate


class Encoder(Protocol):
    """One stream of pcm_s16le, 24 kHz, mono, as chunks of an encoding. What comes out does not depend on the cuts."""

    def encode(self, pcm: bytes) -> list[Chunk]:
        """What can be sent now. `pcm` holds whole samples."""
        ...

    def flush(self) -> list[Chunk]:
        """The rest, at the end of the stream; nothing may be encoded after it."""
        ...


def check_format(encoding: str, sample_rate: int) -> None:
    """Raise `UnsupportedFormat` unless `make_encoder` makes one; it says which encodings and rates there are."""
    if encoding not in ENCODINGS:
        raise UnsupportedFormat(f"encoding is one of {', '.join(ENCODINGS)}")
    rates = OPUS_RATES if encoding == "opus" else SAMPLE_RATES
    if sample_rate not in rates:
        raise UnsupportedFormat(f"sample_rate of {encoding} is one of {', '.join(map(str, rates))}")


def make_encoder(encoding: str, sample_rate: int) -> Encoder:
    """An encoder for one stream.

    opus gives one packet of 80 ms a chunk, the last one filled up with silence; all others one chunk for each piece
    of pcm.

    Raises:
        UnsupportedFormat: see `check_format`.
    """
    check_format(encoding, sample_rate)
    if encoding == "opus":
        return _OpusChunks(OpusEncoder(sample_rate, RELIABLE_MS))
    return Transcoder(cast(PcmEncoding, encoding), sample_rate)


class _OpusChunks:
    """Opus packets with their number of samples."""

    def __init__(self, opus: OpusEncoder) -> None:
        self._opus = opus

    def encode(self, pcm: bytes) -> list[Chunk]:
        return [(packet, self._opus.packet_samples) for packet in self._opus.encode(pcm)]

    def flush(self) -> list[Chunk]:
        return [(packet, self._opus.packet_samples) for packet in self._opus.flush()]
