"""Compressed audio in a container that is written front to back, for files and for streams alike."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import OutputContainer

from agent_tts.events import SAMPLE_RATE


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How FFmpeg makes a format. Each choice keeps back as little audio as the format allows."""

    container: str
    container_options: dict[str, str]
    codec: str
    codec_options: dict[str, str]
    bit_rate: int | None = None  # bits per second, where nothing else is asked for


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

CONTAINERS = frozenset(_RECIPES)


class Muxer:
    """FFmpeg's encoder and container for one stream of mono pcm_s16le.

    Args:
        format: one of `CONTAINERS`; `opus` is in Ogg.
        sample_rate: Hz of the pcm; one that the codec has.
        bit_rate: bits per second; None is the format's own choice.
    """

    def __init__(self, format: str, sample_rate: int = SAMPLE_RATE, bit_rate: int | None = None) -> None:
        recipe = _RECIPES[format]
        self._rate = sample_rate
        # Bytes that the container has written and nobody has taken.
        self._sink = _Sink()
        # bitexact: the same audio gives the same file.
        options = {"flush_packets": "1", "fflags": "+bitexact", **recipe.container_options}
        self._container: OutputContainer = av.open(self._sink, "w", format=recipe.container, options=options)
        stream = self._container.add_stream(recipe.codec, sample_rate, recipe.codec_options, layout="mono")
        assert isinstance(stream, AudioStream)
        stream.codec_context.thread_count = 1  # FFmpeg starts one for each core otherwise, for every file
        if (wanted := bit_rate or recipe.bit_rate) is not None:
            stream.bit_rate = wanted
        self._stream = stream
        self._container.start_encoding()  # here, where it still passes while the engine prepares the first frame
        # Samples encoded so far, which is the time stamp of the next.
        self._samples = 0

    def encode(self, pcm: bytes) -> bytes:
        """What can be sent now; may be empty. `pcm` holds whole samples, one at least."""
        frame = av.AudioFrame(format="s16", layout="mono", samples=len(pcm) // 2)
        frame.sample_rate, frame.time_base, frame.pts = self._rate, Fraction(1, self._rate), self._samples
        frame.planes[0].update(pcm)
        self._samples += frame.samples
        self._container.mux(self._stream.encode(frame))
        return self._sink.take()

    def close(self) -> bytes:
        """The rest; frees what FFmpeg holds, which without it is left to the garbage collector. Once."""
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
