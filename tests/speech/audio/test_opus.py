from __future__ import annotations

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agent_tts.client.resuming import frames_of
from agent_tts.speech.audio.encoding import OpusEncoder
from tests.examples import examples
from tests.speech.audio.test_pcm import NOISE, tone
from tests.support import dominant_hz, typed


def decode(packets: list[bytes]) -> NDArray[np.int16]:
    """48 kHz pcm of packets, decoded without any other information."""
    codec = typed(av.AudioCodecContext, av.CodecContext.create("libopus", "r"))
    codec.sample_rate, codec.layout = 48_000, "mono"
    return np.concatenate(  # pyrefly: ignore[bad-return]
        [frame.to_ndarray().reshape(-1) for packet in packets for frame in codec.decode(av.Packet(packet))]
    )


def encode(pcm: bytes, encoder: OpusEncoder, piece: int = 3_840) -> list[bytes]:
    chunks = [chunk for start in range(0, len(pcm), piece) for chunk in encoder.encode(pcm[start : start + piece])]
    return [packet for packet, _ in chunks + encoder.flush()]


@pytest.mark.parametrize("packet_ms", [20, 80])
@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_tone_keeps_frequency_and_length(rate: int, packet_ms: int) -> None:
    encoder = OpusEncoder(rate, packet_ms)
    packets = encode(tone(440, 1.6), encoder)
    assert len(packets) == 1_600 // packet_ms
    assert encoder.encode(bytes(48 * packet_ms))[0][1] == rate * packet_ms // 1_000
    pcm = decode(packets)
    assert len(pcm) == 1.6 * 48_000
    assert abs(dominant_hz(pcm, 48_000) - 440) <= 1
    assert np.std(pcm.astype(float)) == pytest.approx(12_000 / 2**0.5, rel=0.1)


@pytest.mark.parametrize(("packet_ms", "lag_ms"), [(20, 6.5), (80, 2.5)])
def test_output_lags_no_more_than_the_look_ahead(packet_ms: int, lag_ms: float) -> None:
    """The documented delay, measured on noise that starts at a known time."""
    quiet = bytes(2 * 4_800)
    pcm = decode(encode(quiet + NOISE, OpusEncoder(24_000, packet_ms))).astype(float)
    source = np.repeat(np.frombuffer(NOISE, "<i2").astype(float), 2)[:9_600]
    start = int(np.argmax(np.correlate(pcm[: 9_600 + 19_200], source, "valid")))
    assert start / 48 - 200 == pytest.approx(lag_ms, abs=0.2)


@pytest.mark.parametrize("packet_ms", [20, 80])
@examples(10)
@given(piece=st.integers(1, 6_000))
def test_the_split_does_not_change_the_packets(packet_ms: int, piece: int) -> None:
    assert encode(NOISE, OpusEncoder(24_000, packet_ms), 2 * piece) == encode(NOISE, OpusEncoder(24_000, packet_ms))


def test_every_packet_has_its_duration() -> None:
    """20 ms is one frame in a packet (code 0), 80 ms four of 20 ms (code 3)."""
    assert {packet[0] & 3 for packet in encode(NOISE, OpusEncoder(24_000, 20))} == {0}
    assert {(packet[0] & 3, packet[1] & 63) for packet in encode(NOISE, OpusEncoder(24_000, 80))} == {(3, 4)}


def test_last_packet_is_filled_up_with_silence() -> None:
    encoder = OpusEncoder(24_000, 20)
    assert encoder.encode(bytes(2 * 481))  # one packet, and a sample left over
    assert len(encoder.flush()) == 1
    assert encoder.flush() == []


def test_a_lost_packet_is_recovered_from_the_next() -> None:
    """20 ms packets contain the previous one as FEC, which a SILK header's LBRR flag shows."""
    speech_like = tone(200, 1.0)
    with_fec = encode(speech_like, OpusEncoder(24_000, 20))
    # SILK and hybrid mode, the only ones with FEC; the LBRR bit follows one voice-activity bit (RFC 6716, 4.2.3).
    assert all(packet[0] >> 3 < 16 for packet in with_fec)
    assert sum(bool(packet[1] & 0x40) for packet in with_fec) > len(with_fec) / 2


def test_every_packet_for_rtp_has_the_whole_band() -> None:
    """Up to 12 kHz, from the first on. With fewer bits, FEC costs the band above 8 kHz, and the band changes midway."""
    packets = encode(tone(200, 1.0) + NOISE, OpusEncoder(24_000, 20))
    assert {packet[0] >> 3 for packet in packets} == {13}  # hybrid, super-wideband, 20 ms (RFC 6716, 3.1)


@pytest.mark.parametrize("sound", [tone(440, 0.8), NOISE, bytes(3_840)], ids=["tone", "noise", "silence"])
def test_the_frames_of_a_packet_are_packets(sound: bytes) -> None:
    """The same sound, to the bit: a client that goes on at another node cuts between them."""
    packets = encode(sound, OpusEncoder(packet_ms=80))
    frames = [frames_of(packet) for packet in packets]
    assert {len(some) for some in frames} == {4}
    assert np.array_equal(decode([frame for some in frames for frame in some]), decode(packets))
