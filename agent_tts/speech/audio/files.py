"""Audio files encoded while they are sent: wav, mp3, opus, flac, aac and raw pcm; containers for live audio, too."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import OutputContainer

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import UnsupportedFormat
from agent_tts.sound.ffmpeg import audio_frame
from agent_tts.sound.provenance import MARK

FileFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

CONTENT_TYPES = {format: f"audio/{format}" for format in get_args(FileFormat)}
CONTENT_TYPES |= {"mp3": "audio/mpeg", "opus": "audio/ogg"}

UNKNOWN_SIZE = 0xFFFF_FFFF


class FileEncoder:
    """Encodes pcm_s16le, 24 kHz, mono, in pieces of any size, to a file that is written sequentially.

    mp3 (64 kb/s), opus (48 kb/s in Ogg), aac (64 kb/s in ADTS), flac, wav (16 bit, sizes unknown, see `wav_header`) or
    pcm (pcm_s16le without header). All but pcm say in a comment that the speech is synthetic. Every format gives bytes
    within the first 80 ms of audio, except aac, which looks 86 ms ahead. `close` and `drop` free the encoder's memory;
    otherwise the garbage collector frees it. Raises `UnsupportedFormat` with the list of formats.
    """

    def __init__(self, format: str) -> None:
        if format not in CONTENT_TYPES:
            raise UnsupportedFormat(f"response_format is one of {', '.join(get_args(FileFormat))}")
        self._head = wav_header() if format == "wav" else b""
        # None for wav and pcm, and after `close` or `drop`.
        self._muxer = None if format in ("wav", "pcm") else Muxer(format)

    def encode(self, pcm: bytes) -> bytes:
        """Bytes that can be sent now; may be empty. `pcm` holds whole samples."""
        if not pcm:
            return b""
        head, self._head = self._head, b""
        return head + (pcm if self._muxer is None else self._muxer.encode(pcm))

    def close(self) -> bytes:
        """The rest of the file. Do not encode after it. Idempotent."""
        rest, self._head = self._head, b""
        muxer, self._muxer = self._muxer, None
        return rest if muxer is None else muxer.close()

    def drop(self) -> None:
        """Free the encoder's memory; nothing more is wanted. Do not encode after it. Idempotent."""
        muxer, self._muxer = self._muxer, None  # FFmpeg crashes on what comes after its trailer
        if muxer is not None:
            muxer.drop()


# Format tag and bytes per sample of each encoding in a WAV file.
_WAV_FORMATS = {"pcm_s16le": (1, 2), "pcm_f32le": (3, 4), "alaw": (6, 1), "mulaw": (7, 1)}


def _info(comment: str) -> bytes:
    """A LIST chunk with a comment; texts end with a zero, and chunks are padded to even lengths."""
    text = comment.encode() + b"\0"
    padded = text + bytes(len(text) % 2)
    return struct.pack("<4sI8sI", b"LIST", 12 + len(padded), b"INFOICMT", len(text)) + padded


# Says that the speech is synthetic: behind the samples where `wav_header` is given their number, otherwise in it.
WAV_MARK = _info(MARK)


def wav_header(samples: int | None = None, sample_rate: int = SAMPLE_RATE, encoding: str = "pcm_s16le") -> bytes:
    """The header of mono pcm_s16le, pcm_f32le, alaw or mulaw.

    With an even number of bytes of `samples` it has 44 bytes, which some clients skip unread, and `WAV_MARK` follows
    the samples. Without, the mark is in it, and both sizes are 0xFFFFFFFF, which players and Python's `wave` read as
    "to the end of the file".
    """
    tag, width = _WAV_FORMATS[encoding]
    size, mark = (UNKNOWN_SIZE, WAV_MARK) if samples is None else (width * samples, b"")
    riff = struct.pack("<4sI", b"RIFF", UNKNOWN_SIZE if samples is None else 36 + size + len(WAV_MARK))
    fmt = struct.pack("<8sIHHIIHH", b"WAVEfmt ", 16, tag, 1, sample_rate, width * sample_rate, width, 8 * width)
    return riff + fmt + mark + struct.pack("<4sI", b"data", size)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """FFmpeg options of a format, chosen for the lowest delay."""

    container: str
    container_options: dict[str, str]
    codec: str
    codec_options: dict[str, str]
    bit_rate: int | None = None  # bits per second, the default


_RECIPES = {
    # A Xing frame needs a seek to the front; the bit reservoir delays frames.
    "mp3": _Recipe(
        "mp3",
        {"write_xing": "0"},
        "libmp3lame",
        {"reservoir": "0", "compression_level": "5"},
        64_000,
    ),
    # One packet per page, because a page is sent when it is full.
    "opus": _Recipe(
        "ogg", {"page_duration": "20000"}, "libopus", {"application": "lowdelay", "frame_duration": "20"}, 48_000
    ),
    "aac": _Recipe("adts", {"write_id3v2": "1"}, "aac", {"aac_coder": "fast"}, 64_000),
    # Level 2: blocks of 24 ms, 8 % more bytes than the default's 96 ms.
    "flac": _Recipe("flac", {"metadata_header_padding": "0"}, "flac", {"compression_level": "2"}),
}


class Muxer:
    """FFmpeg's encoder and container for mono pcm_s16le; a comment says that the speech is synthetic.

    Args:
        format: mp3, opus (in Ogg), aac or flac.
        sample_rate: Hz of the pcm; the codec must support it.
        bit_rate: bits per second; None is the format's default.
    """

    def __init__(self, format: str, sample_rate: int = SAMPLE_RATE, bit_rate: int | None = None) -> None:
        recipe = _RECIPES[format]
        self._rate = sample_rate
        self._sink = _Sink()
        # bitexact: the same audio gives the same file.
        options = {"flush_packets": "1", "fflags": "+bitexact", **recipe.container_options}
        self._container: OutputContainer = av.open(self._sink, "w", format=recipe.container, options=options)
        self._container.metadata["comment"] = MARK
        stream = self._container.add_stream(recipe.codec, sample_rate, recipe.codec_options, layout="mono")
        assert isinstance(stream, AudioStream)
        stream.codec_context.thread_count = 1  # otherwise FFmpeg starts one thread per core for each file
        if (wanted := bit_rate or recipe.bit_rate) is not None:
            stream.bit_rate = wanted
        self._stream = stream
        self._container.start_encoding()  # takes time; the engine makes the first frame meanwhile
        # Whether the file is its head and the packets: to have FFmpeg write them would take the interpreter from this
        # thread for each, and other threads may hold it for some time.
        self._is_bare = format == "mp3"
        # Samples encoded so far; time stamp of the next frame.
        self._samples = 0

    def encode(self, pcm: bytes) -> bytes:
        """Bytes that can be sent now; may be empty. `pcm` holds whole samples, at least one."""
        frame = audio_frame(pcm)
        frame.sample_rate, frame.time_base, frame.pts = self._rate, Fraction(1, self._rate), self._samples
        self._samples += frame.samples
        return self._mux(frame)

    def close(self) -> bytes:
        """The remaining bytes. Frees FFmpeg's memory, otherwise left to the garbage collector. Call once."""
        rest = self._mux(None)
        self.drop()
        return rest + self._sink.take()

    def _mux(self, frame: AudioFrame | None) -> bytes:
        packets = self._stream.encode(frame)
        if self._is_bare:
            return self._sink.take() + b"".join(map(bytes, packets))
        self._container.mux(packets)
        return self._sink.take()

    def drop(self) -> None:
        """Free FFmpeg's memory, without what the encoder still holds: to end that takes up to 2 ms. Call once."""
        self._container.close()


class _Sink:
    """A write-only file in memory."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: memoryview) -> int:
        self._pieces.append(bytes(data))  # FFmpeg reuses its buffer
        return len(data)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken
