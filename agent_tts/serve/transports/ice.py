"""ICE servers."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import time
from concurrent.futures import Future
from typing import Any

from aiortc import RTCIceServer
from loguru import logger

from agent_tts.config.settings import Settings
from agent_tts.system.threads import in_daemon

AGAIN_S = 10.0  # before a name is looked up again, with its last address in use meanwhile


def servers(settings: Settings) -> list[RTCIceServer]:
    """The STUN and TURN servers for aiortc. Never None, for which aiortc uses a public server."""
    return [RTCIceServer(**server) for server in for_browser(settings)]


def for_browser(settings: Settings) -> list[dict[str, Any]]:
    """The STUN and TURN servers for a browser: `iceServers` of `RTCPeerConnection`."""
    known = [
        {
            "urls": list(server.urls),
            "username": server.username,
            "credential": server.credential and server.credential.get_secret_value(),
        }
        for server in settings.ice_servers
    ]
    return [{name: value for name, value in server.items() if value} for server in known]


class NamedTls(ssl.SSLContext):
    """TLS to an address, whose certificate must have a name."""

    name = ""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return super().wrap_bio(*args, **options | {"server_hostname": self.name})


class ServerName:
    """A server's name. One thread looks it up for all peers, and holds none of those that recognise speech."""

    def __init__(self, host: str, family: socket.AddressFamily, encrypts: bool = False) -> None:
        self._host, self._family = host, family
        self.tls: NamedTls | None = None  # of a server that encrypts, once it has an address
        self._encrypts = encrypts
        self._address: str | None = None  # that was found last
        self._look: Future[None] | None = None  # the last one, begun at:
        self._looked_at = 0.0
        self._is_told = False  # that it has no address

    async def at(self, port: int) -> tuple[str, int]:
        """Its address, and the port. Raises ConnectionError: it has none now. Cancelling it, after a time, is safe."""
        if self._look is None or (self._look.done() and time.monotonic() > self._looked_at + AGAIN_S):
            self._look, self._looked_at = in_daemon(self._find, self._host), time.monotonic()
        if self._address is None:
            await asyncio.wait([asyncio.wrap_future(self._look)])
        if self._address is None:
            raise ConnectionError(f"{self._host} has no address")
        return self._address, port

    def _find(self) -> None:
        if self._encrypts and self.tls is None:
            tls = NamedTls(ssl.PROTOCOL_TLS_CLIENT)
            tls.load_default_certs()  # it takes 20 ms
            tls.name, self.tls = self._host, tls
        try:
            found = socket.getaddrinfo(self._host, None, self._family, socket.SOCK_DGRAM)
            self._address, self._is_told = str(found[0][4][0]), False
        except (OSError, ValueError) as error:
            if not self._is_told:
                logger.warning("ice_servers: {} has no address now: {}", self._host, error)
            self._is_told = True


server_name = functools.cache(ServerName)  # of the settings
