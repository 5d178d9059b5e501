"""RFC 6455 as raw frames against a real node, a few of each of Autobahn's groups; `make autobahn` runs all of them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from websockets.frames import Opcode

from tests.serve.processes.test_server import HELLO, frame, raw, read_until
from tests.support import RunningNode, running_node

pytestmark = pytest.mark.node

PING = b'{"type":"ping","t":1}'
PONG = b'{"type":"pong","t":1}'
NORMAL, WRONG, NOT_UTF8, TOO_BIG = 1000, 1002, 1007, 1009
END_S = 5.0


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    return frame(Opcode.CLOSE, b"" if code is None else code.to_bytes(2, "big") + reason)


TEXT, MORE = Opcode.TEXT, Opcode.CONT
END = close(NORMAL)
BYE = frame(TEXT, b'{"type":"session.close"}')  # the node's close comes after its answers
CASES: dict[str, tuple[bytes, list[bytes | int | None]]] = {
    # Case: bytes to send; expected answers after the greeting: messages, pongs (0x8a and payload), the close code.
    "1 text": (frame(TEXT, PING) + BYE, [PONG, NORMAL]),
    "1 text with a length of two bytes": (frame(TEXT, PING + b" " * 200) + BYE, [PONG, NORMAL]),
    "2 ping": (frame(Opcode.PING) + END, [b"\x8a", NORMAL]),
    "2 ping of 125 bytes": (frame(Opcode.PING, b"p" * 125) + END, [b"\x8a" + b"p" * 125, NORMAL]),
    "2 ping of invalid UTF-8": (frame(Opcode.PING, b"\xff\x00") + END, [b"\x8a\xff\x00", NORMAL]),
    "2 ping of 126 bytes": (frame(Opcode.PING, b"p" * 126), [WRONG]),
    "2 unsolicited pong": (frame(Opcode.PONG, b"x") + END, [NORMAL]),
    "2 ten pings": (
        b"".join(frame(Opcode.PING, b"%d" % n) for n in range(10)) + END,
        [*map(b"\x8a%d".__mod__, range(10)), NORMAL],
    ),
    "3 reserved bit 1": (frame(TEXT, PING, rsv=0x40), [WRONG]),
    "3 reserved bit 2": (frame(TEXT, PING, rsv=0x20), [WRONG]),
    "3 reserved bit 3 of a ping": (frame(Opcode.PING, rsv=0x10), [WRONG]),
    "4 opcode 3": (frame(3), [WRONG]),
    "4 opcode 7": (frame(7, b"x"), [WRONG]),
    "4 opcode 11": (frame(11), [WRONG]),
    "4 opcode 15": (frame(15, b"x"), [WRONG]),
    "5 fragments": (frame(TEXT, PING[:3], fin=False) + frame(MORE, PING[3:]) + BYE, [PONG, NORMAL]),
    "5 fragments, one of them empty": (
        frame(TEXT, fin=False) + frame(MORE, PING, fin=False) + frame(MORE) + BYE,
        [PONG, NORMAL],
    ),
    "5 fragments with a ping between": (
        frame(TEXT, PING[:3], fin=False) + frame(Opcode.PING, b"x") + frame(MORE, PING[3:]) + BYE,
        [b"\x8ax", PONG, NORMAL],
    ),
    "5 an empty fragment": (frame(MORE, PING), [WRONG]),
    "5 text inside fragments": (frame(TEXT, b"{", fin=False) + frame(TEXT, PING), [WRONG]),
    "5 a fragmented ping": (frame(Opcode.PING, b"x", fin=False), [WRONG]),
    "6 UTF-8": (
        frame(TEXT, '{"type":"ping","t":"κόσμε"}'.encode()) + BYE,
        [rb'{"type":"pong","t":"\u03ba\u03cc\u03c3\u03bc\u03b5"}', NORMAL],
    ),
    "6 UTF-8 cut within a character": (
        frame(TEXT, '{"type":"ping","t":"κ'.encode()[:-1], fin=False) + frame(MORE, 'κ"}'.encode()[1:]) + BYE,
        [rb'{"type":"pong","t":"\u03ba"}', NORMAL],
    ),
    "6 a surrogate": (frame(TEXT, b"\xed\xa0\x80"), [NOT_UTF8]),
    "6 overlong": (frame(TEXT, b"\xc0\xaf"), [NOT_UTF8]),
    "6 beyond Unicode": (frame(TEXT, b"\xf4\x90\x80\x80"), [NOT_UTF8]),
    "6 unfinished": (frame(TEXT, b"\xce", fin=False) + frame(MORE), [NOT_UTF8]),
    "7 close without a code": (close(), [None]),
    "7 close with a reason": (close(1001, b"bye"), [1001]),
    "7 close of one byte": (frame(Opcode.CLOSE, b"\x03"), [WRONG]),
    "7 close of 126 bytes": (close(1000, b"x" * 124), [WRONG]),
    "7 close with a reason of invalid UTF-8": (close(1000, b"\xff"), [NOT_UTF8]),
    "7 close with code 999": (close(999), [WRONG]),
    "7 close with code 1005": (close(1005), [WRONG]),
    "7 close with code 1016": (close(1016), [WRONG]),
    "7 close with a private code": (close(4999), [4999]),
    "7 nothing follows a close": (END + frame(TEXT, PING) + frame(Opcode.PING), [NORMAL]),
    # A deviation: 1000 is expected. The `websockets` library treats it as an unfinished message.
    "7 close inside fragments": (frame(TEXT, b"{", fin=False) + END, [WRONG]),
    "9 64 KiB": (frame(TEXT, PING + b" " * (65_535 - len(PING))) + BYE, [PONG, NORMAL]),
    "9 a frame that says 2^63 bytes": (b"\x81\xff" + (2**63).to_bytes(8) + bytes(4) + b"x", [TOO_BIG]),
    "9 a frame that says 16 MiB": (b"\x81\xff" + (1 << 24).to_bytes(8) + bytes(4) + b"x", [TOO_BIG]),
    "9 more than 64 KiB": (frame(TEXT, b" " * 65_535, fin=False) + frame(MORE, b" " * 2), [TOO_BIG]),
}


def taken(buffer: bytearray) -> tuple[int, bytes] | None:
    """Take a server frame off the buffer, as (opcode, payload); None while it is incomplete."""
    if len(buffer) < 2:
        return None
    opcode, size, at = buffer[0] & 15, buffer[1], 2
    assert buffer[0] & 0xF0 == 0x80, "a fragment, or a reserved bit"
    assert size < 127, "a masked frame, or an unexpected length"
    if size == 126:
        size, at = int.from_bytes(buffer[2:4], "big"), 4
    if len(buffer) < at + size:
        return None
    payload = bytes(buffer[at : at + size])
    del buffer[: at + size]
    return opcode, payload


async def answers(running: RunningNode, sent: bytes) -> list[bytes | int | None]:
    """The node's answers up to the end of the connection; its close is answered."""
    loop = asyncio.get_running_loop()
    found: list[bytes | int | None] = []
    async with raw(running, HELLO, 1 << 17) as sock, asyncio.timeout(END_S):
        head, _, rest = (await read_until(sock, b'"session.created"')).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        await loop.sock_sendall(sock, sent)
        buffer = bytearray(rest)
        while piece := await loop.sock_recv(sock, 65_536):
            buffer += piece
            while (frame_ := taken(buffer)) is not None:
                opcode, payload = frame_
                if opcode == Opcode.CLOSE:
                    found.append(int.from_bytes(payload[:2], "big") if payload else None)
                    with contextlib.suppress(OSError):
                        await loop.sock_sendall(sock, END)
                else:
                    found.append(payload if opcode == Opcode.TEXT else bytes([0x80 | opcode]) + payload)
    assert not buffer
    return found[1:]  # without the greeting


async def test_all_cases() -> None:
    """Runs every case on one node and collects the failures."""
    async with running_node() as running:
        found = {name: await answers(running, sent) for name, (sent, _) in CASES.items()}
    wrong = {name: found[name] for name, (_, expected) in CASES.items() if found[name] != expected}
    assert not wrong
