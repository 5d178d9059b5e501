"""Opus packets in parts: real ones are decoded in test_moving.py."""

from __future__ import annotations

from agent_tts.client.resuming import frames_of

FRAMES = [bytes([length % 7] * length) for length in (3, 252, 700, 5)]
SIZES = bytes([3, 252, 0, 252, 112])  # of all but the last: RFC 6716, section 3.2.1
OF_SIZES, EQUAL = bytes([0xFF, 0x84]) + SIZES + b"".join(FRAMES), bytes([0xFF, 0x03]) + b"aabbcc"


def test_frames() -> None:
    assert frames_of(OF_SIZES) == [b"\xfc" + frame for frame in FRAMES]
    assert frames_of(EQUAL) == [b"\xfcaa", b"\xfcbb", b"\xfccc"]


def test_a_packet_that_is_cut_off_stays_whole() -> None:
    """So does one of another form than libopus makes of 80 ms."""
    for packet in (
        b"",
        b"\xff",
        b"\xfcaabb",
        b"\xfe\x02aabb",
        b"\xff\x44aabbccdd",
        *(OF_SIZES[:end] for end in range(len(OF_SIZES) - 4)),
        b"\xff\x80",
        b"\xff\x00ab",
    ):
        assert frames_of(packet) == [packet]
