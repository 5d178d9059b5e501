"""What datagrams and SCTP packets of a WebRTC peer may be, checked before a library sees them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from struct import unpack_from
from typing import Literal

from aiortc import RTCSctpTransport

from agent_tts.serve.transports.aiortc_private import SctpState, sctp_state

MAX_DATAGRAM = 1_500  # bytes: what a path carries; aiortc sends no more itself
MAX_RECORDS = 16  # in one datagram; the longest flight of a handshake has 5
MAX_HANDSHAKE = 32_768  # bytes of one message of a handshake, of which a certificate is the longest

MAX_GAPS = 256  # SCTP chunks that arrived before an earlier one; the sender repeats what is dropped
MAX_STREAMS = 64
MAX_CONTROL = 8  # chunks of a packet that are not data: aiortc answers most of them one by one
MIN_FRAGMENT = 256  # bytes on average in the fragments of a message; the smallest path of IPv4 carries 576
MAX_UNREAD = 8_192  # chunks and messages that the peer has not acknowledged
UNIT = 128  # chunks that aiortc passes in the time in which it handles one

MAX_OPUS_MS = 120  # of one packet

_STUN_COOKIE = bytes.fromhex("2112a442")
_DTLS_VERSIONS = (0xFEFF, 0xFEFD)
_DTLS_13_CIPHERTEXT = 0b001  # first bits of a record
_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _DATA, _ACK = 20, 21, 22, 23, 26
_PLAIN_MESSAGES = (0, 1, 2, 3, 4, 11, 12, 13, 14, 15, 16)  # of a handshake before its keys
_DTLS_TAG = 16  # bytes; an encrypted record has more

_TSNS = 2**32
_SCTP_DATA, _SCTP_INIT, _SCTP_INIT_ACK, _SCTP_SACK, _SCTP_RECONFIG, _SCTP_FORWARD = 0, 1, 2, 3, 130, 192
_SCTP_WITH_PARAMETERS = {_SCTP_INIT: 16, _SCTP_INIT_ACK: 16, 4: 0, 5: 0, 6: 0, 9: 0, _SCTP_RECONFIG: 0}  # from where
_START_WINDOW = 1_048_576  # bytes that aiortc offers to a sender, less what it holds


class Hostile(Exception):
    """An authenticated peer sends what no honest one does; says what."""


def kind_of(data: bytes) -> Literal["stun", "dtls", "media"] | None:
    """What a datagram is by its first byte (RFC 7983), if its length is possible."""
    if not 12 < len(data) <= MAX_DATAGRAM:
        return None
    first = data[0]
    if first < 4:
        whole = len(data) >= 20 and len(data) == 20 + unpack_from("!H", data, 2)[0]
        return "stun" if whole and data[4:8] == _STUN_COOKIE else None
    if 20 <= first < 64:
        return "dtls"
    return "media" if 128 <= first < 192 else None


# ---------------------------------------------------------------- DTLS


def dtls_records(data: bytes) -> list[bytes]:
    """The records of a datagram, apart: aiortc reads one and leaves the others in OpenSSL's buffer, for ever.

    Returns:
        The records; none if one of them is not what a peer sends. A plaintext alert is none of those: anybody can forge
        it, and it ends OpenSSL's handshake. A handshake that fails ends by its deadline instead.
    """
    records: list[bytes] = []
    start = 0
    while start < len(data):
        end = _record_end(data, start)
        if not start < end <= len(data) or len(records) == MAX_RECORDS:
            return []
        records.append(data[start:end])
        start = end
    return records


def _record_end(data: bytes, start: int) -> int:
    """Where a record ends; 0 if it is not sane."""
    if data[start] >> 5 == _DTLS_13_CIPHERTEXT:
        return _ciphertext_end(data, start)
    body = start + 13
    if len(data) < body:
        return 0
    kind, version, epoch, length = unpack_from("!BHH6xH", data, start)
    end: int = body + length
    if version not in _DTLS_VERSIONS or end > len(data):
        return 0
    if epoch:
        return end if kind in (_ALERT, _HANDSHAKE, _DATA, _ACK) and length > _DTLS_TAG else 0
    if kind == _HANDSHAKE:
        return end if _is_handshake(data, body, end) else 0
    if kind == _ACK:
        return end if length % 16 == 2 else 0
    return end if kind == _CHANGE_CIPHER_SPEC and data[body:end] == b"\x01" else 0


def _ciphertext_end(data: bytes, start: int) -> int:
    """Where a record of DTLS 1.3 (RFC 9147 section 4) ends; 0 if it is not sane."""
    has_id, long_number, has_length = data[start] & 16, data[start] & 8, data[start] & 4
    body = start + (3 if long_number else 2)
    if has_id or len(data) < body + 2:  # a connection id is not negotiated
        return 0
    end = body + 2 + unpack_from("!H", data, body)[0] if has_length else len(data)
    return end if end - body > _DTLS_TAG else 0


def _is_handshake(data: bytes, start: int, end: int) -> bool:
    """Whether the bytes are fragments of plaintext messages of a handshake, at least one."""
    at = start
    while at + 12 <= end:
        kind, size, offset, length = data[at], data[at + 1 : at + 4], data[at + 6 : at + 9], data[at + 9 : at + 12]
        total, fragment = int.from_bytes(size), int.from_bytes(length)
        if kind not in _PLAIN_MESSAGES or int.from_bytes(offset) + fragment > total or total > MAX_HANDSHAKE:
            return False
        at += 12 + fragment
    return at == end and start < end


# ---------------------------------------------------------------- Opus

# Of a frame, by its configuration: SILK, hybrid, CELT.
_FRAME_MS = (10.0, 20.0, 40.0, 60.0) * 3 + (10.0, 20.0) * 2 + (2.5, 5.0, 10.0, 20.0) * 4


def opus_ms(packet: bytes) -> float:
    """Milliseconds of audio in a packet of Opus (RFC 6716 section 3.1); 0 for one that no encoder makes."""
    if not packet:
        return 0.0
    configuration, code = packet[0] >> 3, packet[0] & 3
    if code == 3 and len(packet) < 2:
        return 0.0
    frames = (1, 2, 2, packet[1] & 63 if code == 3 else 0)[code]
    audio_ms = frames * _FRAME_MS[configuration]
    return audio_ms if audio_ms <= MAX_OPUS_MS else 0.0


# ---------------------------------------------------------------- SCTP


def sctp_work(data: bytes, sctp: RTCSctpTransport, max_message: int) -> int | None:
    """How much work a packet will be, in units of a plain chunk, by what aiortc holds now.

    Args:
        data: a packet out of DTLS.
        max_message: bytes of the longest message that the peer may send.
    Returns:
        None if the packet must be dropped: it is too far ahead of one that is missing, and the peer sends it again, or
        it acknowledges what was not sent.
    Raises:
        Hostile: aiortc would handle it in quadratic time or for ever, or keep it for ever.
    """
    units = control = 0
    state = sctp_state(sctp)
    gaps, received = len(state.misordered), state.received
    allowed_gaps = MAX_GAPS
    held = sum(len(stream.reassembly) for stream in state.streams.values())
    held_bytes = _START_WINDOW - state.window
    streams = set(state.streams)
    for kind, body in _chunks(data):
        units += 1 + (gaps + held) // UNIT
        if kind == _SCTP_DATA:
            if received is None:
                return None
            if len(body) <= 12:
                raise Hostile("its SCTP packet is malformed")
            tsn, stream = unpack_from("!LH", body)
            ahead = (tsn - received) % _TSNS
            if 1 < ahead < _TSNS // 2 and tsn not in state.misordered:
                gaps += 1
            elif ahead == 1:  # it fills a gap, so that those behind it may go
                received, allowed_gaps = tsn, 2 * MAX_GAPS
            streams.add(stream)
            held, held_bytes = held + 1, held_bytes + len(body) - 12
        else:
            control += 1
            if kind == _SCTP_SACK and not _is_about_sent(body, state):
                return None
            units += _control_work(kind, body, state, streams)
    if state.unsent + state.unacknowledged > MAX_UNREAD:
        raise Hostile("it reads no messages")
    if gaps > allowed_gaps:
        return None
    if control > MAX_CONTROL:
        raise Hostile("it packs too many SCTP chunks")
    if len(streams) > MAX_STREAMS:
        raise Hostile("it uses too many data channels")
    if held_bytes > max_message + gaps * MAX_DATAGRAM or held > max_message // MIN_FRAGMENT + gaps + UNIT:
        raise Hostile("a message is too long")
    return units


def _chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of the chunks of a packet. Raises Hostile."""
    at = 12
    while at + 4 <= len(data):
        kind, length = unpack_from("!BxH", data, at)
        if length < 4 or at + length > len(data):
            raise Hostile("its SCTP packet is malformed")
        yield kind, data[at + 4 : at + length]
        at += length + -length % 4
    if at == 12:
        raise Hostile("its SCTP packet is empty")


def _control_work(kind: int, body: bytes, state: SctpState, streams: set[int]) -> int:
    """Work of a chunk that is not data, beyond the first unit; adds the streams that aiortc makes for it."""
    if kind == _SCTP_SACK:
        return state.unacknowledged // UNIT
    if kind == _SCTP_FORWARD:
        if len(body) < 4 or len(body) % 4:
            raise Hostile("its SCTP packet is malformed")
        streams.update(unpack_from("!H", body, at)[0] for at in range(4, len(body), 4))
        return len(body) // 4
    if kind in _SCTP_WITH_PARAMETERS:
        return _parameters(body, _SCTP_WITH_PARAMETERS[kind])
    return 0


def _is_about_sent(body: bytes, state: SctpState) -> bool:
    """Whether the blocks of a SACK name only chunks that were sent, each once: aiortc counts through all they name."""
    if len(body) < 12:
        raise Hostile("its SCTP packet is malformed")
    received, blocks = unpack_from("!L4xH", body)
    sent = (state.sent_tsn - 1 - received) % _TSNS
    if sent >= _TSNS // 2 or len(body) < 12 + 4 * blocks:
        return False
    named = 0
    for at in range(12, 12 + 4 * blocks, 4):
        first, last = unpack_from("!HH", body, at)
        named += last - first + 1
        if not (0 < first <= last <= sent and named <= sent):
            return False
    return True


def _parameters(body: bytes, start: int) -> int:
    """How many parameters a chunk has. aiortc reads one without a length for ever."""
    count = 0
    at = start
    while at + 4 <= len(body):
        length = unpack_from("!H", body, at + 2)[0]
        if length < 4:
            raise Hostile("its SCTP packet is malformed")
        count, at = count + 1, at + length + -length % 4
    if count > MAX_CONTROL * 2:
        raise Hostile("it packs too many SCTP chunks")
    return count
