"""Audio files encoded while they are sent: wav, mp3, opus, flac, aac and raw pcm."""

from __future__ import annotations

import struct
from typing import Literal, get_args

from agent_tts.errors import UnsupportedFormat
from agent_tts.events import SAMPLE_RATE
from agent_tts.speech.audio.muxer import Muxer

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
    """Encodes pcm_s16le, 24 kHz, mono, in pieces of any size, to a file that is written sequentially.

    mp3 (64 kb/s, no tags), opus (48 kb/s in Ogg), aac (64 kb/s in ADTS), flac, wav (16 bit, sizes unknown, see
    `wav_header`) or pcm (pcm_s16le without header). Every format gives bytes within the first 80 ms of audio, except
    aac, which looks 86 ms ahead. `close` frees the encoder's memory, also before the end of a file; otherwise the
    garbage collector frees it. Raises `UnsupportedFormat` with the list of formats.
    """

    def __init__(self, format: str) -> None:
        if format not in CONTENT_TYPES:
            raise UnsupportedFormat(f"response_format is one of {', '.join(get_args(FileFormat))}")
        # Not sent yet.
        self._head = wav_header() if format == "wav" else b""
        # None for wav and pcm, and after `close`.
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


# Format tag and bytes per sample of each encoding in a WAV file.
_WAV_FORMATS = {"pcm_s16le": (1, 2), "pcm_f32le": (3, 4), "alaw": (6, 1), "mulaw": (7, 1)}


def wav_header(samples: int | None = None, sample_rate: int = SAMPLE_RATE, encoding: str = "pcm_s16le") -> bytes:
    """The 44-byte header of mono pcm_s16le, pcm_f32le, alaw or mulaw.

    Without `samples` both sizes are 0xFFFFFFFF, which players and Python's `wave` read as "to the end of the file".
    """
    tag, width = _WAV_FORMATS[encoding]
    size = UNKNOWN_SIZE if samples is None else width * samples
    riff_size = UNKNOWN_SIZE if samples is None else 36 + size
    riff = struct.pack("<4sI", b"RIFF", riff_size)
    fmt = struct.pack("<8sIHHIIHH", b"WAVEfmt ", 16, tag, 1, sample_rate, width * sample_rate, width, 8 * width)
    return riff + fmt + struct.pack("<4sI", b"data", size)
