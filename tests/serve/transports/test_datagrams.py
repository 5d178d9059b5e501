from __future__ import annotations

from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest
from aiortc.rtcsctptransport import StreamResetOutgoingParam
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.serve.transports.datagrams import (
    MAX_CONTROL,
    MAX_DATAGRAM,
    MAX_GAPS,
    MAX_RECORDS,
    MAX_STREAMS,
    MIN_FRAGMENT,
    UNIT,
    Hostile,
    dtls_records,
    kind_of,
    opus_ms,
    sctp_work,
)

MAX_MESSAGE = 4_096
COOKIE = bytes.fromhex("2112a442")


def record(kind: int, body: bytes, *, epoch: int = 0, version: int = 0xFEFD) -> bytes:
    return pack("!BHHHLH", kind, version, epoch, 0, 1, len(body)) + body


def handshake(kind: int, fragment: bytes, *, total: int | None = None, offset: int = 0) -> bytes:
    size = len(fragment) if total is None else total
    return bytes([kind]) + size.to_bytes(3) + b"\0\0" + offset.to_bytes(3) + len(fragment).to_bytes(3) + fragment


HELLO = record(22, handshake(1, b"h" * 60))
CIPHERED = record(23, b"x" * 40, epoch=1)
CIPHERED_13 = b"\x2e\x00\x01" + pack("!H", 20) + b"x" * 20


# ---------------------------------------------------------------- datagrams


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b"\x16", None),
        (HELLO, "dtls"),
        (b"\x80" + b"x" * 60, "media"),
        (b"\x80" + b"x" * MAX_DATAGRAM, None),
        (b"\x00\x01\x00\x00" + COOKIE + b"t" * 12, "stun"),
        (b"\x00\x01\x00\x04" + COOKIE + b"t" * 12, None),
        (b"\x00\x01\x00\x00" + b"old " + b"t" * 12, None),
        (b"\x00\x01" + b"x" * 11, None),
        (b"\x10" + b"z" * 40, None),  # ZRTP
        (b"\x40" + b"t" * 40, None),  # a TURN channel
        (b"\xff" * 40, None),
    ],
)
def test_the_first_byte_tells_the_kind(data: bytes, kind: str | None) -> None:
    assert kind_of(data) == kind


@pytest.mark.parametrize(
    "records",
    [
        [HELLO],
        [record(22, handshake(11, b"c" * 500, total=3_000, offset=1_000), version=0xFEFF)],
        [record(22, handshake(2, b"s" * 70) + handshake(14, b""))],
        [record(22, handshake(16, b"k" * 60)), record(20, b"\x01"), record(22, b"f" * 40, epoch=1)],
        [CIPHERED, CIPHERED, record(21, b"a" * 26, epoch=1)],
        [record(26, b"\x00\x10" + bytes(16))],
        [HELLO, CIPHERED_13],
        [CIPHERED_13, b"\x2a\x00\x01" + b"x" * 20],
        [b"\x20\x01" + b"x" * 30],
    ],
)
def test_records_come_one_by_one(records: list[bytes]) -> None:
    assert dtls_records(b"".join(records)) == records


@pytest.mark.parametrize(
    "data",
    [
        record(21, b"\x02\x28"),  # fatal: handshake_failure
        record(21, b"\x01\x00"),
        record(20, b"\x02"),
        record(20, b""),
        record(23, b"x" * 40),
        record(23, b"x" * 16, epoch=1),
        record(24, b"x" * 40, epoch=1),
        record(22, b"x" * 40, version=0x0303),
        record(22, b""),
        record(22, b"x" * 11),
        record(22, handshake(9, b"x")),
        record(22, handshake(11, b"x", total=100_000)),
        record(22, handshake(11, b"xx", total=3, offset=2)),
        record(22, handshake(1, b"h") + b"x"),
        record(26, bytes(17)),
        HELLO[:-1],
        HELLO + b"\x16",
        HELLO + record(21, b"\x02\x28"),
        CIPHERED * (MAX_RECORDS + 1),
        b"\x3e\x00\x01" + pack("!H", 20) + b"x" * 20,  # with a connection id
        b"\x2e\x00\x01" + pack("!H", 21) + b"x" * 20,
        b"\x2e\x00",
    ],
)
def test_a_datagram_with_a_record_that_no_peer_sends_has_none(data: bytes) -> None:
    assert dtls_records(data) == []


@given(st.binary(max_size=200))
def test_records_are_the_datagram_or_none(data: bytes) -> None:
    assert b"".join(dtls_records(data)) in (data, b"")
    kind_of(data)


# ---------------------------------------------------------------- SCTP


def sctp(*, gaps: int = 0, held: int = 0, streams: int = 1, sent: int = 0, received: int | None = 100) -> Any:
    """What aiortc holds: TSNs beyond a gap, fragments on the first stream, chunks sent and not acknowledged."""
    inbound = {number: SimpleNamespace(reassembly=[]) for number in range(streams)}
    inbound[0].reassembly = [None] * held
    return SimpleNamespace(
        _last_received_tsn=received,
        _sack_misordered=set(range(102, 102 + gaps)),
        _inbound_streams=inbound,
        _advertised_rwnd=1_048_576 - held,
        _local_tsn=500 + sent,
        _sent_queue=[None] * sent,
        _data_channel_queue=[],
        _outbound_queue=[],
    )


def chunk(kind: int, body: bytes = b"", flags: int = 3) -> bytes:
    return pack("!BBH", kind, flags, 4 + len(body)) + body + bytes(-len(body) % 4)


def data(tsn: int, payload: bytes = b"{}", stream: int = 0) -> bytes:
    return chunk(0, pack("!LHHL", tsn, stream, 0, 51) + payload)


def sack(received: int, *blocks: tuple[int, int]) -> bytes:
    return chunk(3, pack("!LLHH", received, 9_000, len(blocks), 0) + b"".join(pack("!HH", *block) for block in blocks))


def work(*chunks: bytes, at: Any = None) -> int | None:
    return sctp_work(bytes(12) + b"".join(chunks), at or sctp(), MAX_MESSAGE)


def test_what_libraries_send_is_little_work() -> None:
    assert work(data(101)) == 1
    assert work(*(data(101 + each) for each in range(30))) == 30
    assert work(sack(499), data(101)) == 2
    assert work(sack(499, (2, 5), (7, 7)), at=sctp(sent=10)) == 1
    assert work(chunk(1, bytes(16) + pack("!HH", 0xC000, 4)), at=sctp(received=None)) == 2
    assert work(chunk(130, pack("!HH", 13, 18) + bytes(StreamResetOutgoingParam(1, 1, 1, [1])))) == 2
    assert work(chunk(4, pack("!HH", 1, 12) + bytes(8))) == 2
    assert work(chunk(11)) == 1


def test_work_grows_with_what_aiortc_passes() -> None:
    assert work(data(101), at=sctp(held=UNIT)) == 2
    assert work(data(101), at=sctp(gaps=UNIT)) == 2
    assert work(sack(499), at=sctp(sent=3 * UNIT)) == 4


def test_the_longest_message_fits_in_fragments_and_one_byte_more_does_not() -> None:
    at = sctp()
    at._advertised_rwnd -= MAX_MESSAGE - 100
    assert work(data(101, b"x" * 100), at=at) == 1
    with pytest.raises(Hostile, match="too long"):
        work(data(101, b"x" * 101), at=at)


def test_what_waits_behind_a_gap_is_not_a_long_message() -> None:
    at = sctp(gaps=8)
    at._advertised_rwnd -= MAX_MESSAGE + 7 * MAX_DATAGRAM
    assert work(data(111, b"x" * 1_000), at=at) == 1


def test_many_tiny_fragments_are_refused() -> None:
    most = MAX_MESSAGE // MIN_FRAGMENT + UNIT
    assert work(data(101), at=sctp(held=most - 1)) == 1 + (most - 1) // UNIT
    with pytest.raises(Hostile, match="too long"):
        work(data(101), at=sctp(held=most))


def test_a_chunk_far_beyond_a_gap_is_dropped_but_what_fills_it_is_not() -> None:
    """The sender repeats what is dropped."""
    full = sctp(gaps=MAX_GAPS)
    assert work(data(103 + MAX_GAPS), at=full) is None
    assert work(data(101), at=full) is not None
    assert work(data(104), at=full) is not None  # a repetition
    assert work(data(90), at=full) is not None
    assert work(data(103), at=sctp(gaps=0)) is not None


def test_what_fills_a_gap_may_bring_chunks_beyond_it() -> None:
    """A sender that repeats all it has bundles them. Mutation: one bound for both, and the association stands still."""
    for gaps, taken in ((MAX_GAPS, True), (2 * MAX_GAPS, False)):
        beyond = [data(103 + gaps + each) for each in range(20)]
        assert (work(data(101), *beyond, at=sctp(gaps=gaps)) is not None) is taken
        assert work(data(101), at=sctp(gaps=gaps)) is not None


def test_tsns_wrap() -> None:
    at = sctp(received=2**32 - 1)
    assert work(data(0), data(1), at=at) == 2
    at._sack_misordered = set(range(1, 1 + MAX_GAPS))
    assert work(data(2_000), at=at) is None


def test_data_before_the_association_is_dropped() -> None:
    assert work(data(101), at=sctp(received=None)) is None


@pytest.mark.parametrize(
    "blocks", [((1, 65_535),), ((1, 11),), ((0, 1),), ((5, 4),), ((1, 8), (1, 8)), ((1, 65_535),) * 300]
)
def test_an_acknowledgement_of_what_was_not_sent_is_dropped(blocks: tuple[tuple[int, int], ...]) -> None:
    """aiortc counts through each block: 340 of 65 535 are seconds."""
    assert work(sack(499, *blocks), at=sctp(sent=10)) is None


def test_an_acknowledgement_of_the_future_is_dropped() -> None:
    assert work(sack(500)) is None
    assert work(chunk(3, pack("!LLHH", 499, 9_000, 7, 0)), at=sctp(sent=10)) is None


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [b"\x00\x00\x00\x03"],
        [data(101)[:-4]],
        [chunk(0, bytes(12))],
        [chunk(3)],
        [chunk(4, bytes(4))],  # aiortc reads a parameter without a length for ever
        [chunk(6, pack("!HH", 1, 3))],
        [chunk(9, pack("!HHHH", 1, 4, 1, 0))],
        [chunk(130, bytes(4))],
        [chunk(1, bytes(20))],
        [chunk(2, bytes(20))],
        [chunk(130, pack("!HH", 16, 4) * (2 * MAX_CONTROL + 1))],
        [chunk(4)] * (MAX_CONTROL + 1),
        [chunk(192, bytes(6))],
        [chunk(192)],
        [chunk(192, bytes(4) + b"".join(pack("!HH", each, 0) for each in range(MAX_STREAMS + 1)))],
        [data(101 + each, stream=each) for each in range(MAX_STREAMS + 1)],
    ],
)
def test_what_no_library_sends_is_hostile(chunks: list[bytes]) -> None:
    with pytest.raises(Hostile):
        work(*chunks)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=80)), max_size=20), st.binary(max_size=8))
def test_any_packet_is_work_or_dropped_or_hostile(chunks: list[tuple[int, bytes]], tail: bytes) -> None:
    try:
        units = work(*(chunk(kind, body) for kind, body in chunks), tail, at=sctp(gaps=9, held=9, sent=9))
    except Hostile:
        return
    assert units is None or 0 < units < 500


# ---------------------------------------------------------------- Opus


@pytest.mark.parametrize(
    ("packet", "audio_ms"),
    [
        (b"", 0),
        (b"\xf8\xff\xfe", 20),
        (b"\xe0\xff\xfe", 2.5),
        (b"\x18", 60),
        (b"\x08\0", 20),
        (b"\x68" + bytes(9), 20),
        (b"\x60" + bytes(9), 10),
        (b"\x19\0\0", 120),
        (b"\xfb", 0),
        (b"\xfb\x06" + bytes(6), 120),
        (b"\xfb\x07" + bytes(7), 0),  # longer than a packet may be
    ],
)
def test_a_packet_of_opus_tells_its_duration(packet: bytes, audio_ms: float) -> None:
    assert opus_ms(packet) == audio_ms
