"""Opus packets of a node, taken apart without a decoder (RFC 6716, section 3.2)."""

from __future__ import annotations


def frames_of(packet: bytes) -> list[bytes]:
    """The frames of a packet, each a packet by itself, of equal length in time; the packet where it has one."""
    if len(packet) < 2 or packet[0] & 3 != 3 or packet[1] & 0x40:  # of another form than libopus makes of 80 ms
        return [packet]
    head = bytes([packet[0] & ~3])
    has_sizes, count = packet[1] & 0x80, packet[1] & 63
    at = 2
    sizes = []
    for _ in range(count - 1):
        if has_sizes:
            size = packet[at]
            at += 1
            if size >= 252:
                size += 4 * packet[at]
                at += 1
        else:
            size = (len(packet) - 2) // count
        sizes.append(size)
    frames = []
    for size in sizes:
        frames.append(head + packet[at : at + size])
        at += size
    return [*frames, head + packet[at:]]
