"""Audio files made while they are sent: wav, mp3, opus, flac, aac and raw pcm, from the engine's frames."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import av
from av.audio.stream import AudioStream
from av.container import OutputContainer

from agent_tts.errors import UnsupportedFormat
from agent_tts.events import SAMPLE_RATE

FileFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

CONTENT_TYPES: dict[str, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

UNKNOWN_SIZE = 0xFFFF_FFFF


class FileEncoder:
    """One stream of pcm_s16le, 24 kHz, mono, in pieces of any size, as a file that is written front to back.

    Every format gives bytes within the first 80 ms of audio, but for aac, which looks 86 ms ahead. `close` frees what
    the encoder holds, also in the middle of a file; without it that is left to the garbage collector.

    Args:
        format: `mp3` (64 kb/s, no tags), `opus` (48 kb/s in Ogg), `aac` (64 kb/s in ADTS), `flac`, `wav` (16 bit; its
            sizes say "unknown", see `wav_header`) or `pcm` (pcm_s16le without a header).

    Raises:
        UnsupportedFormat: says which formats there are.
    """

    def __init__(self, format: str) -> None:
        if format not in CONTENT_TYPES:
            raise UnsupportedFormat(f"response_format is one of {', '.join(get_args(FileFormat))}")
        # What goes before the first bytes of sound.
        self._head = wav_header() if format == "wav" else b""
        # None where the samples are sent as they are, and after `close`.
        self._muxer = _Muxer(_RECIPES[format]) if format in _RECIPES else None

    def encode(self, pcm: bytes) -> bytes:
        """What can be sent now; may be empty. `pcm` holds whole samples."""
        if not pcm:
            return b""
        body = pcm if self._muxer is None else self._muxer.encode(pcm)
        head, self._head = self._head, b""
        return head + body if head else body

    def close(self) -> bytes:
        """The rest of the file. Nothing may be encoded after it. Idempotent."""
        rest, self._head = self._head, b""
        muxer, self._muxer = self._muxer, None
        return rest if muxer is None else muxer.close()


def wav_header(samples: int | None = None) -> bytes:
    """The 44 bytes before mono 24 kHz pcm_s16le.

    Args:
        samples: None when their number is not known yet: both sizes are 0xFFFFFFFF then, which players and Python's
            `wave` read as "to the end of the file".
    """
    size = UNKNOWN_SIZE if samples is None else 2 * samples
    riff_size = UNKNOWN_SIZE if samples is None else 36 + size
    fmt = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE, 2 * SAMPLE_RATE, 2, 16)
    return (
        b"RIFF"
        + struct.pack("<I", riff_size)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + fmt
        + b"data"
        + struct.pack("<I", size)
    )


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How FFmpeg makes a format. Each choice keeps back as little audio as the format allows."""

    container: str
    container_options: dict[str, str]
    codec: str
    codec_options: dict[str, str]
    bit_rate: int | None = None  # bits per second


_RECIPES = {
    # A Xing frame can only be written by going back to the front; the bit reservoir would hold frames back.
    "mp3": _Recipe(
        "mp3",
        {"write_xing": "0", "id3v2_version": "0"},
        "libmp3lame",
        {"reservoir": "0", "compression_level": "5"},
        64_000,
    ),
    # A page for each packet: a page waits to be full.
    "opus": _Recipe(
        "ogg", {"page_duration": "20000"}, "libopus", {"application": "lowdelay", "frame_duration": "20"}, 48_000
    ),
    "aac": _Recipe("adts", {}, "aac", {"aac_coder": "fast"}, 64_000),
    # Level 2 has blocks of 24 ms, for 8 % more bytes than the default's 96 ms.
    "flac": _Recipe("flac", {"metadata_header_padding": "0"}, "flac", {"compression_level": "2"}),
}


class _Muxer:
    """FFmpeg's encoder and container for one file."""

    def __init__(self, recipe: _Recipe) -> None:
        # Bytes that the container has written and nobody has taken.
        self._sink = _Sink()
        # bitexact: the same audio gives the same file.
        options = {"flush_packets": "1", "fflags": "+bitexact", **recipe.container_options}
        self._container: OutputContainer = av.open(self._sink, "w", format=recipe.container, options=options)
        stream = self._container.add_stream(recipe.codec, SAMPLE_RATE, recipe.codec_options, layout="mono")
        assert isinstance(stream, AudioStream)
        stream.codec_context.thread_count = 1  # FFmpeg starts one for each core otherwise, for every file
        if recipe.bit_rate is not None:
            stream.bit_rate = recipe.bit_rate
        self._stream = stream
        self._container.start_encoding()  # here, where it still passes while the engine prepares the first frame
        # Samples encoded so far, which is the time stamp of the next.
        self._samples = 0

    def encode(self, pcm: bytes) -> bytes:
        frame = av.AudioFrame(format="s16", layout="mono", samples=len(pcm) // 2)
        frame.sample_rate, frame.time_base, frame.pts = SAMPLE_RATE, Fraction(1, SAMPLE_RATE), self._samples
        frame.planes[0].update(pcm)
        self._samples += frame.samples
        self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def close(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


class _Sink:
    """A file that can only be written, in memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))  # FFmpeg uses its buffer again
        return len(data)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken
