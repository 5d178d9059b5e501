from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent_tts.errors import UnsupportedFormat
from agent_tts.protocol.options import ENCODINGS, RATES_OF, SAMPLE_RATES
from agent_tts.speech.audio.encoding import make_encoder
from tests.speech.audio.test_files import SLACK_MS, assert_frees, decode
from tests.speech.audio.test_pcm import NOISE, tone
from tests.support import dominant_hz

BYTES_PER_SAMPLE = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}


@pytest.mark.parametrize(
    ("encoding", "rate"), [(each, rate) for each in ENCODINGS for rate in RATES_OF.get(each, SAMPLE_RATES)]
)
def test_chunks_have_their_number_of_samples(encoding: str, rate: int) -> None:
    encoder = make_encoder(encoding, rate)
    chunks = [chunk for _ in range(10) for chunk in encoder.encode(tone(300, 0.08))] + encoder.flush()
    assert abs(sum(samples for _, samples in chunks) - 0.8 * rate) <= 1
    if encoding in BYTES_PER_SAMPLE:
        assert all(len(payload) == samples * BYTES_PER_SAMPLE[encoding] for payload, samples in chunks)
    elif encoding == "opus":
        assert len(chunks) == 10
    else:
        assert len(chunks) >= 10


def encode(pcm: bytes, encoding: str, rate: int, bit_rate: int | None = None, piece: int = 3_840) -> bytes:
    encoder = make_encoder(encoding, rate, bit_rate)
    chunks = [chunk for at in range(0, len(pcm), piece) for chunk in encoder.encode(pcm[at : at + piece])]
    return b"".join(payload for payload, _ in chunks + encoder.flush())


# Delay of mp3 at 8 kHz, where a frame is 72 ms.
LONG_FRAME_MS = 160

FILES = [("mp3", rate) for rate in SAMPLE_RATES] + [("ogg_opus", 48_000)]


@pytest.mark.parametrize(("encoding", "rate"), FILES)
def test_files_decode_to_the_input(encoding: str, rate: int) -> None:
    body = encode(tone(440, 2.0), encoding, rate)
    samples, decoded_rate = decode(body, encoding)
    assert decoded_rate == rate
    slack_ms = LONG_FRAME_MS if rate == 8_000 else SLACK_MS["mp3" if encoding == "mp3" else "opus"]
    assert 0 <= len(samples) * 1_000 / rate - 2_000 <= slack_ms
    assert abs(dominant_hz(samples.astype(np.int16), rate) - 440) <= 1


@pytest.mark.parametrize(("encoding", "rate"), FILES)
def test_files_begin_with_the_first_frame(encoding: str, rate: int) -> None:
    seconds = LONG_FRAME_MS / 1_000 if rate == 8_000 else 0.08
    assert make_encoder(encoding, rate, 128_000).encode(tone(440, seconds))[0][0]


@pytest.mark.parametrize(("encoding", "rate"), FILES)
def test_the_split_does_not_change_a_file(encoding: str, rate: int) -> None:
    assert encode(NOISE, encoding, rate, piece=1_002) == encode(NOISE, encoding, rate)


def test_a_file_has_the_requested_bit_rate() -> None:
    kbps = {asked: len(encode(tone(440, 2.0), "mp3", 44_100, asked)) * 8 / 2_000 for asked in (32_000, 128_000)}
    assert kbps == pytest.approx({32_000: 32, 128_000: 128}, rel=0.05)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("encoding", "rate"), [("mp3", 44_100), ("ogg_opus", 48_000)])
def test_a_dropped_encoder_frees_its_memory(encoding: str, rate: int) -> None:
    """By a context that is cancelled. Fails without the finalizer."""
    assert_frees(lambda: make_encoder(encoding, rate).encode(NOISE[:20_000]))


def test_opus_pads_the_last_packet() -> None:
    encoder = make_encoder("opus", 48_000)
    assert encoder.encode(bytes(100)) == []
    assert [samples for _, samples in encoder.flush()] == [3_840]


@pytest.mark.parametrize(("encoding", "rate", "allowed"), [("mp2", 24_000, "opus"), ("opus", 44_100, "48000")])
def test_a_refusal_names_the_allowed_values(encoding: str, rate: int, allowed: str) -> None:
    with pytest.raises(UnsupportedFormat, match=allowed):
        make_encoder(encoding, rate)


@pytest.mark.parametrize(("encoding", "rate"), [("pcm_s16le", 48_000), ("mulaw", 8_000)])
def test_a_resampler_starts_no_thread(encoding: str, rate: int) -> None:
    """Fails without `threads = 1`: FFmpeg starts one for each core."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("needs /proc")
    before = len(list(tasks.iterdir()))
    encoders = [make_encoder(encoding, rate) for _ in range(5)]
    for encoder in encoders:
        encoder.encode(bytes(2 * 1_920))
    assert len(list(tasks.iterdir())) == before
