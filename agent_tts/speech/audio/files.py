"""Audio files made while they are sent: wav, mp3, opus, flac, aac and raw pcm, from the engine's frames."""

from __future__ import annotations

import struct
from typing import Literal, get_args

from agent_tts.errors import UnsupportedFormat
from agent_tts.events import SAMPLE_RATE
from agent_tts.speech.audio.muxer import CONTAINERS, Muxer

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
        self._muxer = Muxer(format) if format in CONTAINERS else None

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


# Format tag and bytes per sample of each encoding in a WAV file.
_WAV_FORMATS = {"pcm_s16le": (1, 2), "pcm_f32le": (3, 4), "alaw": (6, 1), "mulaw": (7, 1)}


def wav_header(samples: int | None = None, sample_rate: int = SAMPLE_RATE, encoding: str = "pcm_s16le") -> bytes:
    """The 44 bytes before mono pcm_s16le, pcm_f32le, alaw or mulaw.

    Args:
        samples: None when their number is not known yet: both sizes are 0xFFFFFFFF then, which players and Python's
            `wave` read as "to the end of the file".
    """
    tag, width = _WAV_FORMATS[encoding]
    size = UNKNOWN_SIZE if samples is None else width * samples
    riff_size = UNKNOWN_SIZE if samples is None else 36 + size
    fmt = struct.pack("<HHIIHH", tag, 1, sample_rate, width * sample_rate, width, 8 * width)
    return (
        b"RIFF"
        + struct.pack("<I", riff_size)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + fmt
        + b"data"
        + struct.pack("<I", size)
    )
