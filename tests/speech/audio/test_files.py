from __future__ import annotations

import io
import wave
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from agent_tts.errors import UnsupportedFormat
from agent_tts.sound.provenance import MARK
from agent_tts.speech.audio.files import CONTENT_TYPES, WAV_MARK, FileEncoder, wav_header
from tests.speech.audio.test_pcm import NOISE, tone
from tests.support import dominant_hz, uncollected

# Maximum extra audio before the first sample and after the last, ms: priming and a full last block.
SLACK_MS = {"mp3": 46 + 48, "opus": 1, "aac": 43 + 43, "flac": 1, "wav": 1, "pcm": 1}


def encode(pcm: bytes, format: str, piece: int = 3_840) -> list[bytes]:
    encoder = FileEncoder(format)
    return [encoder.encode(pcm[start : start + piece]) for start in range(0, len(pcm), piece)] + [encoder.close()]


def decode(data: bytes, format: str) -> tuple[NDArray[np.float64], int]:
    """The samples of a file, and their rate."""
    if format == "pcm":
        return np.frombuffer(data, "<i2").astype(float), 24_000
    with av.open(io.BytesIO(data), "r") as container:
        rate = container.streams.audio[0].rate
        pieces = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    samples = np.concatenate(pieces)
    return samples.astype(float) * (1 if samples.dtype.kind == "i" else 32_768), rate


def assert_frees(leave: Callable[[], object]) -> None:
    """It frees its memory at once, without the garbage collector."""

    def resident_kib() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4

    for _ in range(8):
        leave()
    with uncollected():
        before = resident_kib()
        for _ in range(20):  # any encoder has 200 KiB or more
            leave()
        assert resident_kib() - before < 1_500


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_a_file_decodes_to_the_input(format: str) -> None:
    samples, rate = decode(b"".join(encode(tone(440, 2.0), format)), format)
    assert 0 <= len(samples) * 1_000 / rate - 2_000 <= SLACK_MS[format]
    assert abs(dominant_hz(samples.astype(np.int16), rate) - 440) <= 1
    assert np.std(samples[rate // 2 : rate]) == pytest.approx(12_000 / 2**0.5, rel=0.1)


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_bytes_come_from_the_first_frame_on(format: str) -> None:
    """The first frame produces bytes already, except for aac, which looks ahead; then every frame does."""
    pieces = encode(tone(440, 2.0), format)
    late = 1 if format == "aac" else 0
    assert all(len(piece) > 150 for piece in pieces[late:-1])


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_the_split_does_not_change_the_file(format: str) -> None:
    assert b"".join(encode(NOISE, format, 1_002)) == b"".join(encode(NOISE, format))


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_a_file_without_sound_can_be_closed(format: str) -> None:
    encoder = FileEncoder(format)
    assert bool(encoder.close()) is (format != "pcm")  # the others have a header
    assert encoder.close() == b""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("end", [FileEncoder.close, FileEncoder.drop])
@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_closing_in_the_middle_frees_all_memory(format: str, end: Callable[[FileEncoder], object]) -> None:
    """`drop`: by a request that is left."""

    def leave() -> None:
        encoder = FileEncoder(format)
        encoder.encode(NOISE[:20_000])
        end(encoder)

    assert_frees(leave)


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_what_comes_after_the_encoder_was_given_up_does_no_harm(format: str) -> None:
    """A thread may be about to end the file. Mutation: FFmpeg gets it, and crashes."""
    encoder = FileEncoder(format)
    encoder.encode(NOISE[:20_000])
    encoder.drop()
    encoder.drop()
    assert encoder.close() == b""


def test_wav_of_unknown_length_is_read_by_the_standard_library() -> None:
    with wave.open(io.BytesIO(b"".join(encode(NOISE, "wav")))) as reader:
        assert reader.getparams()[:3] == (1, 2, 24_000)
        assert reader.readframes(reader.getnframes()) == NOISE


@pytest.mark.parametrize("format", CONTENT_TYPES)
def test_a_file_says_in_its_first_bytes_that_it_is_synthetic(format: str) -> None:
    """While it is sent, before its second frame; as FFmpeg and so most players and tools read it."""
    data = encode(tone(440, 1.0), format)
    start, whole = b"".join(data[:2]), b"".join(data)
    if format == "pcm":
        assert whole == tone(440, 1.0)
        return
    assert MARK.encode() in start
    with av.open(io.BytesIO(whole), "r") as container:
        comments = {**container.metadata, **container.streams.audio[0].metadata}
    assert comments["comment"] == MARK


def test_wav_header_of_known_length() -> None:
    """44 bytes, which some clients skip; the mark is behind the samples."""
    file = wav_header(len(NOISE) // 2) + NOISE + WAV_MARK
    assert file[44 : 44 + len(NOISE)] == NOISE
    with wave.open(io.BytesIO(file)) as reader:
        assert reader.readframes(10_000_000) == NOISE
    with av.open(io.BytesIO(file), "r") as container:
        assert container.metadata["comment"] == MARK
        assert sum(frame.samples for frame in container.decode(audio=0)) == len(NOISE) // 2


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedFormat, match="mp3, opus, aac, flac, wav, pcm"):
        FileEncoder("ogg")
