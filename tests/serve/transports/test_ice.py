"""Names of STUN and TURN servers, while no resolver answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_tts.serve.transports import ice
from agent_tts.serve.transports.ice import AGAIN_S, ServerName
from tests.certificates import make_certificate
from tests.rtc_peer import RtcPeer
from tests.support import logged, present, running_node

NAME = "stun.agent-tts.test"


class Resolver:
    """Looks a name up when it is let go."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers = threading.Event()
        self.address: str | None = "192.0.2.1"
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: str, *args: Any, **named: Any) -> Any:
        if host != NAME:
            return self._real(host, *args, **named)
        self.asked.append(args)
        self.answers.wait(60)
        if self.address is None:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (self.address, 0))]

    def gethostbyname(self, host: str) -> str:
        return str(self.getaddrinfo(host)[0][4][0]) if host == NAME else host


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    monkeypatch.setattr(socket, "gethostbyname", made.gethostbyname)
    ice.server_name.cache_clear()
    yield made
    made.answers.set()
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join(10)
    ice.server_name.cache_clear()


@pytest.mark.node
@pytest.mark.real_time
@pytest.mark.parametrize("server", ["stun", "turn", "turns"])
async def test_no_answer_of_a_resolver_holds_up_what_works_in_threads(resolver: Resolver, server: str) -> None:
    """Fails where aioice looks the name up: each peer's lookup holds a thread of the executor that hears speech."""
    secret = {} if server == "stun" else {"username": "a", "credential": "b"}
    servers = [{"urls": [f"{server}:{NAME}:3478"], **secret}]
    async with running_node(ice_servers=servers) as node:
        executor = ThreadPoolExecutor(1)  # which the loop ends
        asyncio.get_running_loop().set_default_executor(executor)
        async with node.http() as client:
            for _ in range(2):
                async with RtcPeer() as peer:
                    reply = await client.post("/v1/rtc/offer", json={"sdp": await peer.offer(), "type": "offer"})
                    assert reply.status_code == 200
                await asyncio.wait_for(asyncio.to_thread(int), 5)
        assert len(resolver.asked) == 1
        resolver.answers.set()


@pytest.mark.node
async def test_an_address_is_kept_for_a_while_and_while_there_is_no_newer_one(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    resolver.answers.set()
    resolver.address = None
    name = ServerName(NAME, socket.AF_INET)
    with logged() as log:
        for _ in range(2):
            for _ in range(3):
                with pytest.raises(ConnectionError):
                    await name.at(1)
            now += AGAIN_S + 1
    assert len(resolver.asked) == 2
    assert [NAME in line for line in log] == [True]
    resolver.address = "192.0.2.1"
    assert [await name.at(port) for port in (1, 2)] == [("192.0.2.1", 1), ("192.0.2.1", 2)]
    resolver.address = None
    now += AGAIN_S + 1
    assert [await name.at(1) for _ in range(3)] == [("192.0.2.1", 1)] * 3
    assert len(resolver.asked) == 4


@pytest.mark.node
@pytest.mark.parametrize("host", ["localhost", NAME])
async def test_a_turn_server_by_tls_is_reached_by_its_address_and_known_by_its_name(
    resolver: Resolver, tmp_path: Path, host: str
) -> None:
    """The certificate is localhost's and that of the address. Fails if it is checked for the address."""
    resolver.answers.set()
    resolver.address = "127.0.0.1"
    certificate = make_certificate(tmp_path)
    name = ServerName(host, socket.AF_INET, encrypts=True)
    address, _ = await name.at(1)
    tls = present(name.tls)
    tls.load_verify_locations(certificate.cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    loop = asyncio.get_running_loop()
    async with await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        connecting = loop.create_connection(asyncio.Protocol, address, port, ssl=tls)
        refusal = pytest.raises(ssl.SSLCertVerificationError, match="Hostname")
        with contextlib.nullcontext() if host == "localhost" else refusal:
            transport, _ = await connecting
            transport.abort()
