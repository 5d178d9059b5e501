"""Opus packets of a node, taken apart without a decoder (RFC 6716, section 3.2)."""

from __future__ import annotations


def frames_of(packet: bytes) -> list[bytes]:
    """The frames of a packet, each a packet by itself, of equal length in time.

    The packet as it is, if it has one frame or is cut off.
    """
    if len(packet) < 2 or packet[0] & 3 != 3 or packet[1] & 0x40:  # of another form than libopus makes of 80 ms
        return [packet]
    head, has_sizes, count = bytes([packet[0] & ~3]), packet[1] & 0x80, packet[1] & 63
    rest, sizes = packet[2:], list[int]()
    while rest and len(sizes) < count - 1:
        size = len(packet[2:]) // count
        if has_sizes:
            size, rest = rest[0], rest[1:]
            if size >= 252:
                size, rest = size + 4 * (rest[0] if rest else 0), rest[1:]
        sizes.append(size)
    frames = list[bytes]()
    for size in sizes:
        frames.append(head + rest[:size])
        rest = rest[size:]
    return [*frames, head + rest] if rest and len(sizes) == count - 1 else [packet]
