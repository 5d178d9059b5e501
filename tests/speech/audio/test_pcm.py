from __future__ import annotations

from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent_tts.engine_info import FRAME_BYTES
from agent_tts.speech.audio.encoding import PcmEncoding, Transcoder
from tests.examples import examples
from tests.support import dominant_hz, typed

RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
ENCODINGS: tuple[PcmEncoding, ...] = ("pcm_s16le", "pcm_f32le", "mulaw", "alaw")
RNG = np.random.default_rng(0)
NOISE = RNG.normal(0, 3_000, 12_007).clip(-32_768, 32_767).astype("<i2").tobytes()


def tone(hz: float, seconds: float = 1.0) -> bytes:
    time = np.arange(round(seconds * 24_000)) / 24_000
    return (12_000 * np.sin(2 * np.pi * hz * time)).astype("<i2").tobytes()


def transcode(pcm: bytes, encoding: PcmEncoding, rate: int, cuts: list[int] | None = None) -> tuple[bytes, int]:
    """Payload and number of samples of a stream that is split at these samples."""
    coder = Transcoder(encoding, rate)
    edges = [0, *sorted(cuts or []), len(pcm) // 2]
    chunks = [chunk for start, end in pairwise(edges) for chunk in coder.encode(pcm[2 * start : 2 * end])]
    chunks += coder.flush()
    return b"".join(payload for payload, _ in chunks), sum(samples for _, samples in chunks)


def decode(payload: bytes, encoding: PcmEncoding, rate: int) -> NDArray[np.int16]:
    """pcm_s16le of a payload, by an independent decoder."""
    if encoding == "pcm_s16le":
        return np.frombuffer(payload, "<i2")
    if encoding == "pcm_f32le":
        return (np.frombuffer(payload, "<f4") * 32_768).astype(np.int16)
    codec = typed(av.AudioCodecContext, av.CodecContext.create(f"pcm_{encoding}", "r"))
    codec.sample_rate, codec.layout = rate, "mono"
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in codec.decode(av.Packet(payload))])  # pyrefly: ignore[bad-return]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tone_keeps_frequency_loudness_and_length(encoding: PcmEncoding, rate: int) -> None:
    payload, samples = transcode(tone(440), encoding, rate, list(range(1_920, 24_000, 1_920)))
    pcm = decode(payload, encoding, rate)
    assert len(pcm) == samples
    assert abs(samples - rate) <= 1
    assert abs(dominant_hz(pcm, rate) - 440) <= 1
    assert np.std(pcm.astype(float)) == pytest.approx(12_000 / 2**0.5, rel=0.02)


@examples(20)
@given(cuts=st.lists(st.integers(0, 12_007), max_size=12), rate=st.sampled_from(RATES))
def test_the_split_does_not_change_the_bytes(cuts: list[int], rate: int) -> None:
    for encoding in ENCODINGS:
        assert transcode(NOISE, encoding, rate, cuts) == transcode(NOISE, encoding, rate)


@pytest.mark.parametrize("rate", RATES)
def test_number_of_samples_is_right_to_one(rate: int) -> None:
    for samples in (80, 81, 82, 959, 1_920, 24_001):
        _, given_out = transcode(bytes(2 * samples), "pcm_s16le", rate)
        assert abs(given_out - samples * rate / 24_000) <= 1, samples


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 32_000, 44_100, 48_000])
def test_resampling_keeps_positions(rate: int) -> None:
    """A click keeps its place: samples are held back, not delayed."""
    click = np.zeros(24_000, "<i2")
    click[2_400] = 20_000
    payload, _ = transcode(click.tobytes(), "pcm_s16le", rate)
    assert int(np.argmax(np.abs(np.frombuffer(payload, "<i2").astype(int)))) == rate // 10


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 32_000, 44_100, 48_000])
def test_resampling_holds_back_under_2_ms(rate: int) -> None:
    coder = Transcoder("pcm_s16le", rate)
    ((_, samples),) = coder.encode(bytes(3_840))
    assert 80 - samples * 1_000 / rate < 2


@pytest.mark.parametrize(("rate", "hz"), [(8_000, 4_700), (16_000, 9_400)])
def test_frequencies_above_the_rate_do_not_alias(rate: int, hz: int) -> None:
    payload, _ = transcode(tone(hz), "pcm_s16le", rate)
    middle = np.frombuffer(payload, "<i2").astype(float)[rate // 10 : -rate // 10]
    assert np.std(middle) < 12_000 / 2**0.5 * 10 ** (-60 / 20)


def test_pcm_at_24_khz_is_the_same_object() -> None:
    coder = Transcoder("pcm_s16le", 24_000)
    frame = NOISE[:FRAME_BYTES]
    assert coder.encode(frame)[0][0] is frame
    assert coder.flush() == []


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("encoding", ["pcm_s16le", "mulaw"])
def test_a_payload_is_80_ms_whatever_the_piece(encoding: PcmEncoding, rate: int) -> None:
    coder = Transcoder(encoding, rate)
    payloads = [*coder.encode(NOISE), *coder.flush()]
    assert {samples for _, samples in payloads[:-1]} <= {rate * 80 // 1_000} | {payloads[-2][1]}
    assert max(samples for _, samples in payloads) == rate * 80 // 1_000
    width = 2 if encoding == "pcm_s16le" else 1
    assert all(len(payload) == width * samples for payload, samples in payloads)


def test_floats_are_samples_from_minus_one_to_one() -> None:
    values = np.arange(-32_768, 32_768).astype("<i2")
    payload, samples = transcode(values.tobytes(), "pcm_f32le", 24_000)
    assert samples == 65_536
    assert (np.frombuffer(payload, "<f4") * 32_768 == values).all()


@pytest.mark.parametrize("encoding", ["mulaw", "alaw"])
def test_g711_is_accurate_to_half_a_step(encoding: PcmEncoding) -> None:
    """Every value comes back within half a step; a step is at most 1/16 of the value."""
    values = np.arange(-32_768, 32_768).astype("<i2")
    payload, _ = transcode(values.tobytes(), encoding, 24_000)
    error = np.abs(decode(payload, encoding, 24_000).astype(int) - values)
    assert (error <= np.maximum(np.abs(values.astype(int)) / 30 + 16, 16)).all()


@pytest.mark.parametrize("rate", RATES)
def test_empty_input_gives_empty_output(rate: int) -> None:
    coder = Transcoder("mulaw", rate)
    assert coder.encode(b"") == []
    assert coder.flush() == []
