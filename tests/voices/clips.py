"""Uploaded clips: valid ones in every format, and several hundred damaged or malicious ones."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import av
import numpy as np
from numpy.typing import NDArray

SECONDS = 2.0
TONE_HZ = 440.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Parameters of an encoded file."""

    container: str  # FFmpeg's names
    codec: str
    sample_format: str
    rate: int = 48_000
    layout: str = "mono"
    video: str = ""  # video codec, for a film around the audio


KINDS = {
    "wav": Kind("wav", "pcm_s16le", "s16", 24_000),
    "wav_float": Kind("wav", "pcm_f32le", "flt", 44_100, "stereo"),
    "wav_24_bit": Kind("wav", "pcm_s24le", "s32", 96_000),
    "wav_mulaw": Kind("wav", "pcm_mulaw", "s16", 8_000),
    "flac": Kind("flac", "flac", "s16", 44_100, "stereo"),
    "mp3": Kind("mp3", "libmp3lame", "fltp", 44_100, "stereo"),
    "opus": Kind("ogg", "libopus", "flt"),
    "vorbis": Kind("ogg", "vorbis", "fltp", 44_100, "stereo"),
    "m4a": Kind("mp4", "aac", "fltp", 44_100),
    "webm": Kind("webm", "libopus", "flt"),
    "film": Kind("mp4", "aac", "fltp", video="mpeg4"),
}


def tone(seconds: float = SECONDS, rate: int = 24_000, peak: float = 0.5) -> NDArray[np.float32]:
    """float32[seconds * rate] of one frequency."""
    time = np.arange(round(seconds * rate)) / rate
    return (peak * np.sin(2 * np.pi * TONE_HZ * time)).astype(np.float32)


def encoded(kind: Kind, samples: NDArray[np.float32]) -> bytes:
    """An audio file of float32[n] at the kind's rate; the same in all channels."""
    out = io.BytesIO()
    with av.open(out, "w", format=kind.container) as container:
        options = {"strict": "experimental"}  # FFmpeg's own Vorbis encoder requires it
        stream = container.add_stream(kind.codec, rate=kind.rate, options=options)
        assert isinstance(stream, av.AudioStream)
        stream.layout, stream.format, stream.bit_rate = kind.layout, kind.sample_format, 128_000
        if kind.video:
            film = container.add_stream(kind.video, rate=10)
            assert isinstance(film, av.VideoStream)
            film.width = film.height = 64
            container.mux(film.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
            container.mux(film.encode(None))
        resampler = av.AudioResampler(format=kind.sample_format, layout=kind.layout, rate=kind.rate)
        channels = av.AudioLayout(kind.layout).nb_channels
        packed = np.repeat(samples[:, None], channels, axis=1).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=kind.layout)
        frame.sample_rate = kind.rate
        fifo = av.AudioFifo()
        for resampled in resampler.resample(frame):
            fifo.write(resampled)
        size = stream.codec_context.frame_size or 1_024
        while (piece := fifo.read(size, partial=True)) is not None:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return out.getvalue()


@cache
def good(name: str) -> bytes:
    """A tone of two seconds as one of `KINDS`."""
    kind = KINDS[name]
    return encoded(kind, tone(rate=kind.rate))


def wav(samples: NDArray[np.float32] | NDArray[np.int16], rate: int = 24_000, **lies: int) -> bytes:
    """A mono WAV file whose header fields can be wrong: `channels`, `rate`, `data_bytes`, `bits`, `block`."""
    data, bits = samples.tobytes(), 8 * samples.itemsize
    form = 3 if samples.dtype == np.float32 else 1
    header = {"form": form, "channels": 1, "rate": rate, "block": bits // 8, "bits": bits, "data_bytes": len(data)}
    header |= lies
    return (
        struct.pack(
            "<4sI8sIHHIIHH4sI",
            *(b"RIFF", (36 + header["data_bytes"]) & 0xFFFFFFFF, b"WAVEfmt ", 16),
            *(header["form"], header["channels"], header["rate"], (header["rate"] * header["block"]) & 0xFFFFFFFF),
            *(header["block"], header["bits"], b"data", header["data_bytes"]),
        )
        + data
    )


@cache
def flac_bomb(minutes: float = 20.0) -> bytes:
    """A small file of long silence, which is a thousand times larger when decoded."""
    return encoded(Kind("flac", "flac", "s16", 8_000), np.zeros(round(minutes * 60 * 8_000), np.float32))


def mutated(seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of more than 200 clips, most of them invalid; deterministic."""
    dice = random.Random(seed)
    for name in KINDS:
        clip = good(name)
        for cut in (12, 100, len(clip) // 2, len(clip) - 1):
            yield f"{name} cut to {cut}", clip[:cut]
        for flips, first, last in ((1, 0, 64), (4, 0, 64), (16, 0, 512), (8, 0, len(clip)), (500, 64, len(clip))):
            broken = bytearray(clip)
            for _ in range(flips):
                broken[dice.randrange(first, min(last, len(clip)))] ^= 1 << dice.randrange(8)
            yield f"{name} with {flips} bits flipped in {first}..{last}", bytes(broken)
        start = len(clip) // 3
        yield f"{name} with a hole", clip[:start] + bytes(len(clip) // 3) + clip[2 * start :]
        yield f"{name} beheaded", clip[64:]
        yield f"{name} of noise", clip[:64] + dice.randbytes(len(clip) - 64)
        yield f"{name} twice", clip + clip
        yield f"{name} in another's middle", clip[: len(clip) // 2] + good("flac")
    yield from _lies()
    yield from _strangers(dice)


def _lies() -> Iterator[tuple[str, bytes]]:
    """WAV files with wrong headers."""
    pcm = (tone() * 32_767).astype("<i2")
    lies: dict[str, dict[str, int]] = {
        "2 hours": {"data_bytes": 2 * 3_600 * 48_000},
        "4 GiB": {"data_bytes": 0xFFFFFFFF},
        "no data": {"data_bytes": 0},
        "0 Hz": {"rate": 0},
        "1 Hz": {"rate": 1},
        "384 kHz": {"rate": 384_000},
        "4 GHz": {"rate": 0xFFFFFFFF},
        "0 channels": {"channels": 0},
        "32 channels": {"channels": 32, "block": 64},
        "65535 channels": {"channels": 65_535},
        "0 bits": {"bits": 0},
        "7 bits": {"bits": 7},
        "64 bits": {"bits": 64},
        "blocks of 0": {"block": 0},
        "blocks of 65535": {"block": 65_535},
        "another codec": {"form": 0x55},
        "an unknown codec": {"form": 0xABCD},
        "an ADPCM codec": {"form": 2},
    }
    for what, lie in lies.items():
        yield f"wav that claims {what}", wav(pcm, **lie)
    yield "wav of silence", wav(np.zeros(48_000, np.int16))
    yield "wav of faint noise", wav(np.resize(np.array([3, -3], np.int16), 48_000))
    yield "wav of half a second", wav(pcm[:12_000])
    yield "wav that is too long", wav(np.resize(pcm, 24_000 * 30))
    for value in (np.nan, np.inf, -np.inf, 1e38):
        samples = tone()
        samples[1_000:2_000] = value
        yield f"wav with samples of {value}", wav(samples)


def _strangers(dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Files that are not audio, or that would make FFmpeg open other files."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb", bytes(8 << 20))
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    yield "nothing", b""
    yield "a zero", b"\0"
    yield "zeros", bytes(100_000)
    yield "noise", dice.randbytes(100_000)
    yield "text", b"Hello, this is no audio at all. " * 100
    yield "a playlist", playlist.encode()
    yield "a playlist of concat", b"ffconcat version 1.0\nfile /etc/passwd\n"
    yield "a playlist after a tag", b"ID3\x04\0\0\0\0\0\0" + playlist.encode()
    yield "a manifest", b'<?xml version="1.0"?><MPD><BaseURL>file:///etc/passwd</BaseURL></MPD>'
    yield "a session description", b"v=0\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n"
    yield "an image", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield "another image", b"GIF89a" + dice.randbytes(1_000)
    yield "a zip bomb", archive.getvalue()
    yield "a zip bomb behind a clip", good("wav") + archive.getvalue()
    yield "a gzip bomb", gzip.compress(bytes(8 << 20), mtime=0)
    yield "a bomb of silence", flac_bomb()
    yield "an AIFF file", b"FORM\0\0\0\x20AIFFCOMM" + bytes(32)
    yield "a RIFF that is no WAVE", b"RIFF\xff\xff\xff\xffAVI LIST" + dice.randbytes(1_000)
    yield "an MP4 of nothing", b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42" + bytes(1_000)
    yield "an MP4 box of 16 EiB", b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42\0\0\0\x01moov" + b"\xff" * 8
    yield "boxes in boxes", b"\0\0\0\x18ftypM4A \0\0\0\0M4A mp42" + b"\0\x0f\xff\xffmoov" * 50_000
    yield "a Matroska of nothing", b"\x1a\x45\xdf\xa3" + b"\xff" * 1_000
    yield "an Ogg of nothing", b"OggS" + bytes(1_000)
    yield "a tag of 256 MiB", b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(1_000)
    yield "frame headers alone", b"\xff\xfb\x90\x00" * 10_000
