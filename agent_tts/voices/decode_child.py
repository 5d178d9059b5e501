"""The process that decodes one clip: `python -m agent_tts.voices.decode_child PID MAX_SECONDS`; clip in, samples out.

A clip is untrusted input to a large C library. The process reads it only after it has given up files, processes,
memory and time that decoding does not need. FFmpeg's formats and codecs are a fixed list, never guessed from the clip.
It ends with its parent, PID.

On stdout: one byte with the number of channels, 1 or 2, then 24 kHz samples as pcm_f32le, channels interleaved.
Exit codes: 0, or a `Refusal`, with what the clip is on stderr; a limit that is reached ends the process by a signal.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from itertools import chain
from typing import IO, TYPE_CHECKING

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.system.in_child import die_with

if TYPE_CHECKING:
    import av
    from av.container import InputContainer

MEMORY_BYTES = 512 << 20  # of address space; Python with FFmpeg takes 130 MiB, a clip of 10 MiB twice its size
CPU_S = 5  # one minute of audio takes less than 0.5 s in any format
NICE = 10

# FFmpeg's names.
CODECS = (
    *("pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw", "pcm_mulaw"),
    *("flac", "mp3float", "mp3", "opus", "libopus", "vorbis", "aac"),
)
# What other files begin with, for refusals.
OTHERS = (
    *((b"\xff\xf1", "AAC in ADTS"), (b"\xff\xf9", "AAC in ADTS"), (b"FORM", "AIFF"), (b"caff", "Core Audio (CAF)")),
    *((b"#!AMR", "AMR"), (b"0&\xb2u", "Windows Media (WMA)"), (b"wvpk", "WavPack"), (b"MThd", "MIDI"), (b".snd", "AU")),
)
MAX_CHANNELS = 2
MIN_RATE, MAX_RATE = 8_000, 192_000  # Hz

# A WAV file with one sample of silence.
_FIRST = struct.pack("<4sI8sIHHIIHH4sIh", b"RIFF", 38, b"WAVEfmt ", 16, 1, 1, 8_000, 16_000, 2, 16, b"data", 2, 0)


class Refusal(IntEnum):
    """Why a clip is not decoded, as an exit code. Python itself uses 1 and 2."""

    FORMAT = 3
    TRACK = 4
    DAMAGED = 5
    TOO_LONG = 6
    LIMITS = 7


class ClipRefused(Exception):
    """`found` says what the clip is, as far as that is known, and is written to stderr."""

    def __init__(self, refusal: Refusal, found: str = "") -> None:
        super().__init__(refusal.name)
        self.refusal, self.found = refusal, found


def container_format(clip: bytes) -> str:
    """FFmpeg's name of the format that the first bytes show, the only one tried; raises `ClipRefused` for any other."""
    if clip[:4] in (b"RIFF", b"RF64") and clip[8:12] == b"WAVE":
        return "wav"
    if clip[4:8] == b"ftyp":
        return "mp4"
    if clip.startswith(b"ID3") and len(clip) > 10:  # a tag, whose size has 7 bits a byte
        size = sum((byte & 0x7F) << shift for byte, shift in zip(clip[6:10], (21, 14, 7, 0), strict=True))
        if clip[10 + size : 12 + size] in (b"\xff\xf1", b"\xff\xf9"):
            clip = clip[10 + size :]
    for start, name in ((b"fLaC", "flac"), (b"OggS", "ogg"), (b"\x1a\x45\xdf\xa3", "matroska"), (b"ID3", "mp3")):
        if clip.startswith(start):
            return name
    # An MPEG audio frame: 11 bits set, the version, then a layer that is not 0 (0 is ADTS).
    if clip[:1] == b"\xff" and len(clip) > 1 and clip[1] & 0xE0 == 0xE0 and clip[1] & 0x06:
        return "mp3"
    raise ClipRefused(Refusal.FORMAT, next((name for start, name in OTHERS if clip.startswith(start)), ""))


def samples(clip: bytes, max_s: float) -> Iterator[bytes]:
    """The output, in pieces. Raises `ClipRefused` for a clip that is not allowed; FFmpegError, ValueError: damaged."""
    import av
    import numpy as np
    import soxr

    # These limits also hold while FFmpeg probes the file.
    allowed = {"protocol_whitelist": "", "codec_whitelist": ",".join(CODECS)}
    name = container_format(clip)
    with av.open(io.BytesIO(clip), "r", format=name, container_options=allowed, metadata_errors="ignore") as container:
        frames = decoded(container)
        first = next(frames, None)
        if first is None:
            raise ClipRefused(Refusal.DAMAGED)
        channels = first.layout.nb_channels
        if channels > MAX_CHANNELS or not MIN_RATE <= first.sample_rate <= MAX_RATE:
            codec = container.streams.audio[0].codec_context.codec.long_name
            raise ClipRefused(Refusal.TRACK, f"{codec}, {first.layout.name}, {first.sample_rate} Hz")
        yield bytes([channels])
        # It refuses a later frame with another rate or layout.
        converter = av.AudioResampler(format="flt")
        # The reference resamples so: librosa's "soxr_hq".
        resampler = soxr.ResampleStream(first.sample_rate, SAMPLE_RATE, channels, "float32", "HQ")
        room = round(max_s * first.sample_rate)
        for frame in chain((first,), frames, (None,)):
            for piece in converter.resample(frame):
                room -= piece.samples
                if room < 0:
                    raise ClipRefused(Refusal.TOO_LONG)
                data = np.frombuffer(bytes(piece.planes[0]), np.float32, piece.samples * channels)
                yield resampler.resample_chunk(data.reshape(-1, channels)).tobytes()
        yield resampler.resample_chunk(np.zeros((0, channels), np.float32), last=True).tobytes()


def decoded(container: InputContainer) -> Iterator[av.AudioFrame]:
    """The frames of the first audio track, without packets that do not decode."""
    import av

    stream = next(iter(container.streams.audio), None)
    if stream is None:
        raise ClipRefused(Refusal.TRACK, "without audio")
    if stream.codec_context.name not in CODECS:
        raise ClipRefused(Refusal.TRACK, stream.codec_context.codec.long_name)
    stream.codec_context.thread_count = 1
    for packet in container.demux(stream):
        try:
            yield from packet.decode()
        except av.InvalidDataError:
            continue


def give_up_powers() -> None:
    """Allow no new file or process, no output except pipes, little memory and little CPU time."""
    if sys.platform == "win32":
        return
    import resource

    os.nice(NICE)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
    ):
        resource.setrlimit(limit, (value, value))


def answer(source: IO[bytes], max_s: float, out: IO[bytes]) -> int:
    """Read a clip and write the output. Returns the exit code; what a refused clip is, is printed to stderr."""
    try:
        for piece in samples(source.read(), max_s):
            out.write(piece)
        out.flush()
    except ClipRefused as refused:
        print(refused.found, file=sys.stderr)
        return refused.refusal
    except MemoryError:
        return Refusal.LIMITS
    except Exception as error:  # noqa: BLE001 - untrusted bytes may raise any error in a decoder
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return Refusal.DAMAGED
    return 0


def main() -> int:
    """Run the process. It decodes a clip of its own first, to import all of PyAV while files can still be opened."""
    parent, max_s = int(sys.argv[1]), float(sys.argv[2])
    die_with(parent)
    for _ in samples(_FIRST, max_s):
        pass
    give_up_powers()
    return answer(sys.stdin.buffer, max_s, sys.stdout.buffer)


if __name__ == "__main__":
    sys.exit(main())
