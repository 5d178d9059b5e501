"""What the kernel knows of a connection, and how long it keeps what it could not send. Complete on Linux alone."""

from __future__ import annotations

import socket
import struct
import sys
from asyncio.trsock import TransportSocket

if sys.platform == "linux":
    import fcntl
    import termios

# What is read of struct tcp_info: the state, unanswered retransmissions and window probes in a row, ms since the last
# answer.
_INFO = struct.Struct("=BxBB52xI")
_CLOSE, _CLOSE_WAIT = 7, 8  # states: it was reset, the peer has sent its last byte
_SIOCOUTQNSD = 0x894B
_LINGER_0 = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
LOST_TRIES = 2  # one may be on its way


def untaken_bytes(sock: TransportSocket) -> int:
    """Bytes in the kernel that the peer has not acknowledged; 0 without Linux, and after the socket's end."""
    return _ask(sock, termios.TIOCOUTQ) if sys.platform == "linux" else 0


def unsent_bytes(sock: TransportSocket) -> int:
    """Bytes in the kernel that were never on the way, because the peer has no room; 0 as above."""
    return _ask(sock, _SIOCOUTQNSD) if sys.platform == "linux" else 0


def is_lost(sock: TransportSocket, silent_s: float) -> bool:
    """Whether the peer's machine has answered nothing for `silent_s`, though the kernel has asked more than once.

    A machine whose program does not read still answers.
    """
    if sys.platform != "linux" or sock.fileno() < 0:
        return False
    _, *tries, silent_ms = _INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size))
    return bool(max(tries) >= LOST_TRIES and silent_ms >= silent_s * 1_000)


def has_left(sock: TransportSocket) -> bool:
    """Whether the peer has closed the connection, though bytes of it that nobody has read may lie before its end."""
    if sys.platform != "linux" or sock.fileno() < 0:
        return False
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (_CLOSE, _CLOSE_WAIT)


def set_user_timeout(sock: socket.socket | TransportSocket, seconds: float) -> None:
    """Set how long the kernel keeps a connection whose peer does not answer, or has no room; a listener's is that of
    its connections. Times without room add up. 0: 15 minutes for the former, no limit for the latter."""
    if hasattr(socket, "TCP_USER_TIMEOUT") and sock.fileno() >= 0:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1_000))


def drop_unsent(sock: TransportSocket) -> None:
    """Reset the connection when the socket closes."""
    if sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)


def _ask(sock: TransportSocket, request: int) -> int:
    if sys.platform != "linux" or sock.fileno() < 0:
        return 0
    return int.from_bytes(fcntl.ioctl(sock.fileno(), request, bytes(4)), sys.byteorder)
