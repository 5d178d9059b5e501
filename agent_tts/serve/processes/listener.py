"""The node's listening sockets: one, or one for each of several fronts."""

from __future__ import annotations

import socket
import sys

from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.serve.transports import tcp

# Kernel buffer for what a client is sent, in bytes; Linux doubles it. The default takes 84 s of audio before a client
# that never reads is noticed.
SEND_BUFFER = 65_536
RECEIVE_BUFFER = 32_768  # for what a client sends, likewise doubled; clients send text

CONNECTION_BACKLOG = 1_024


def listen(settings: Settings) -> socket.socket:
    """The listening socket of a node with one front, whose connections inherit its options.

    Raises `SettingsError` for an address that is unusable or in use.
    """
    return _bound(settings, settings.port, shared=False)


def reserve(settings: Settings) -> socket.socket:
    """Take the port for several fronts, until the socket is closed. It does not listen, so it gets no connections.

    Raises `SettingsError` for an address that is unusable or in use, by a socket like this one, too.
    """
    with listen(settings) as probe:  # a socket that shares its port would not notice another node
        port = probe.getsockname()[1]
    reserved = share(settings, port)
    # With this option Linux would let others listen beside a socket that does not. Fronts share it by another one.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return reserved


def share(settings: Settings, port: int) -> socket.socket:
    """The socket of one of several fronts on a reserved port; it does not listen yet. Raises `SettingsError`."""
    return _bound(settings, port, shared=True)


def url_of(listener: socket.socket, settings: Settings) -> str:
    """The node's address."""
    host, port = listener.getsockname()[:2]
    scheme = "http" if settings.tls.cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _bound(settings: Settings, port: int, *, shared: bool) -> socket.socket:
    host = settings.host
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise SettingsError(f"host {host} is not an address of this machine: {error.strerror}") from error
    # asyncio sets TCP_NODELAY only with this protocol.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        tcp.set_user_timeout(sock, settings.timeouts.tcp_user_s)
        sock.bind(address)
        if not shared:
            sock.listen(CONNECTION_BACKLOG)
    except OSError as error:
        sock.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    sock.setblocking(False)
    return sock
