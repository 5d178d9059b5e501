"""TLS: a certificate and its key from files, and handshakes that strangers begin."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from tempfile import TemporaryFile
from typing import NoReturn, cast

from loguru import logger

from agent_tts.config.files import FileContents, read
from agent_tts.config.settings import Tls
from agent_tts.errors import SettingsError
from agent_tts.serve.access.fair_queue import SLICE_S, Flow

MAX_HANDSHAKES = 128  # at once, each with a ClientHello; with more, the oldest ends
RECORD_HEAD = 5  # bytes: type, version, and the length of the rest
RECORD_HANDSHAKE = 22  # the type of a ClientHello
MAX_RECORD = 1 << 14


@dataclass(eq=False)
class Handshakes:
    """The TLS handshakes in progress, each with a deadline.

    A listener with `ssl` would tell nobody of a connection before its handshake is done, and would give OpenSSL all
    that comes: 50 to 300 KiB a stranger, and 0.3 to 1 ms for each ClientHello, as many as there are at once. Here
    OpenSSL gets a connection with its whole first record, one in each pass of the event loop.
    """

    context: ssl.SSLContext
    timeout_s: float
    flow: Flow  # all of them take turns in it
    make_protocol: Callable[[], asyncio.Protocol]  # that of a connection once its handshake is done
    entered: Callable[[asyncio.Transport], None]  # called with each TCP connection
    left: Callable[[asyncio.Transport], None]  # called with it when its handshake is done or has failed

    def __post_init__(self) -> None:
        self._connections: dict[asyncio.Transport, None] = {}  # the oldest first
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(self) -> asyncio.Protocol:
        """That of a new TCP connection."""
        return _Handshake(self)

    async def abort(self) -> None:
        """End all of them."""
        for connection in self._connections:
            connection.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, handshake: _Handshake) -> None:
        """A client has connected."""
        if len(self._connections) >= MAX_HANDSHAKES:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._connections[handshake.transport] = None
        self.entered(handshake.transport)
        task = asyncio.create_task(self._run(handshake), name="TLS handshake")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, handshake: _Handshake) -> None:
        plain = handshake.transport
        try:
            async with asyncio.timeout(self.timeout_s):
                await handshake.has_record.wait()
                await self.flow.wait(SLICE_S)
                if plain.is_closing():
                    return
                transport = await self._start_tls(handshake)
        except OSError:  # of OpenSSL, of the connection, and of the deadline
            plain.abort()
            return
        finally:
            self._connections.pop(plain, None)
            self.left(plain)
        if transport.is_closing():
            return
        protocol = self.make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if handshake.data:
            protocol.data_received(bytes(handshake.data))

    async def _start_tls(self, handshake: _Handshake) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        plain, record = handshake.transport, bytes(handshake.data)
        handshake.data.clear()  # what comes with the end of the handshake is next

        def feed() -> None:
            if not plain.is_closing():
                protocol = cast("asyncio.BufferedProtocol", plain.get_protocol())
                protocol.get_buffer(len(record))[: len(record)] = record  # pyrefly: ignore[unsupported-operation]
                protocol.buffer_updated(len(record))

        # `start_tls` schedules the start of its protocol, and then to read: `feed` has to be between it and new data.
        loop.call_soon(loop.call_soon, feed)
        transport = await loop.start_tls(plain, handshake, self.context, server_side=True)
        assert transport is not None
        return transport


class _Handshake(asyncio.Protocol):
    """Keeps what a client sends before its handshake has begun, and what comes with its end."""

    transport: asyncio.Transport

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self.data = bytearray()
        self.has_record = asyncio.Event()  # also when it is lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyrefly: ignore[bad-override]
        self.transport = transport
        self._handshakes.begin(self)

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.has_record.is_set():
            return
        if self.data[0] != RECORD_HANDSHAKE:
            self.transport.abort()
            return
        if len(self.data) >= RECORD_HEAD:
            length = int.from_bytes(self.data[RECORD_HEAD - 2 : RECORD_HEAD])
            if length > MAX_RECORD:
                self.transport.abort()
            elif len(self.data) >= RECORD_HEAD + length:
                self.transport.pause_reading()
                self.has_record.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_record.set()


def server_context(tls: Tls, contents: FileContents | None = None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with the certificate in the settings; None without one.

    Raises:
        SettingsError: a file cannot be used; the message says which, why, and what to do.
    """
    if tls.cert is None:
        return None
    if contents is None:
        contents = {tls.cert: read("tls.cert", tls.cert)} | ({tls.key: read("tls.key", tls.key)} if tls.key else {})
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        with _at_path(tls.cert, contents) as cert, _at_path(tls.key or tls.cert, contents) as key:
            context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except ssl.SSLError as error:
        raise SettingsError(f"tls: {_why(error, tls)}") from None
    return context


@contextmanager
def _at_path(path: str, contents: FileContents) -> Iterator[str]:
    """A file as it is in `contents`, at a path in this block, for OpenSSL, which takes no bytes."""
    if sys.platform == "win32":
        yield path
        return
    with open(os.memfd_create("tls"), "w+b") if hasattr(os, "memfd_create") else TemporaryFile() as file:
        file.write(contents[path])
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def warn_of_certificate(path: str, pem: bytes, now: datetime) -> None:
    """Log that clients refuse a certificate at this time, if they do. `pem` is what is at the path."""
    from cryptography.x509 import load_pem_x509_certificate

    with suppress(ValueError):  # of a form that OpenSSL alone knows
        certificate = load_pem_x509_certificate(pem)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not begin <= now <= end:
            why = "has expired" if now > end else "is not valid yet"
            logger.warning("tls.cert: {} {}: it is valid from {} to {}", path, why, begin, end)


def _refuse_passphrase() -> NoReturn:
    """OpenSSL would ask for it on the terminal."""
    raise SettingsError("tls.key has a passphrase; remove it: openssl pkey -in OLD -out NEW")


def _why(error: ssl.SSLError, tls: Tls) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {tls.key or tls.cert} does not belong to the certificate in {tls.cert}"
    if error.reason == "EE_KEY_TOO_SMALL":
        return f"the key of {tls.cert} is too short: use RSA with 2048 bits, or P-256"
    hint = "" if tls.key is not None else "; if the key is in another file, set tls.key"
    return f"{tls.cert} with {tls.key or tls.cert} is not a PEM certificate and key ({error.reason or 'no PEM'}){hint}"
