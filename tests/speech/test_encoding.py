"""One interface for every encoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_tts.errors import UnsupportedFormat
from agent_tts.speech.encoding import ENCODINGS, OPUS_RATES, SAMPLE_RATES, make_encoder
from tests.speech.test_pcm import tone

BYTES_PER_SAMPLE = {"pcm_s16le": 2, "pcm_f32le": 4, "mulaw": 1, "alaw": 1}


@pytest.mark.parametrize(
    ("encoding", "rate"),
    [(each, rate) for each in ENCODINGS for rate in (OPUS_RATES if each == "opus" else SAMPLE_RATES)],
)
def test_chunks_tell_their_samples(encoding: str, rate: int) -> None:
    encoder = make_encoder(encoding, rate)
    chunks = [chunk for _ in range(10) for chunk in encoder.encode(tone(300, 0.08))] + encoder.flush()
    assert abs(sum(samples for _, samples in chunks) - 0.8 * rate) <= 1
    if encoding in BYTES_PER_SAMPLE:
        assert all(len(payload) == samples * BYTES_PER_SAMPLE[encoding] for payload, samples in chunks)
    else:
        assert len(chunks) == 10


def test_opus_fills_up_the_last_packet() -> None:
    encoder = make_encoder("opus", 48_000)
    assert encoder.encode(bytes(100)) == []
    assert [samples for _, samples in encoder.flush()] == [3_840]


@pytest.mark.parametrize(("encoding", "rate", "allowed"), [("mp3", 24_000, "opus"), ("opus", 44_100, "48000")])
def test_refusal_says_what_is_allowed(encoding: str, rate: int, allowed: str) -> None:
    with pytest.raises(UnsupportedFormat, match=allowed):
        make_encoder(encoding, rate)


@pytest.mark.parametrize(("encoding", "rate"), [("pcm_s16le", 48_000), ("mulaw", 8_000)])
def test_a_resampler_starts_no_thread(encoding: str, rate: int) -> None:
    """Remove `threads = 1` to see it fail: FFmpeg starts one for each core."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("needs /proc")
    before = len(list(tasks.iterdir()))
    encoders = [make_encoder(encoding, rate) for _ in range(5)]
    for encoder in encoders:
        encoder.encode(bytes(2 * 1_920))
    assert len(list(tasks.iterdir())) == before
