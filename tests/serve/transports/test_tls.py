"""HTTPS and WSS on the node's port: real clients, and the limits of plain connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import sys
import time
from pathlib import Path

import httpx
import pytest

from agent_tts.client.moving import connect
from agent_tts.config.settings import Settings, Tls
from agent_tts.errors import SettingsError
from agent_tts.serve.transports.tls import MAX_HANDSHAKES, server_context
from tests.certificates import Certificate, make_certificate
from tests.cli.process import invoke
from tests.serve.processes.test_server import raw
from tests.support import present, running_node, until
from tests.wire import speak, wire

pytestmark = pytest.mark.node

WRITE_S = 0.5
TEXT = "Nobody on the way can listen."


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path)


async def test_the_page_http_and_the_stream_are_encrypted(certificate: Certificate) -> None:
    async with running_node(tls=certificate.settings) as running:
        assert running.url.startswith("https://")
        trust = certificate.client()
        async with running.http(verify=trust, trust_env=False) as client:
            page = await client.get("/", headers={"Origin": running.url})
            spoken = await client.post("/v1/audio/speech", json={"input": TEXT, "response_format": "wav"})
            head = await client.post("/v1/audio/speech", content=b"x" * 40_000)  # more than fits beside a handshake
        assert (page.status_code, spoken.status_code, head.status_code) == (200, 200, 400)
        assert spoken.content[:4] == b"RIFF"
        async with wire(running.ws_url, ssl=trust) as peer:
            await peer.say("t", TEXT, lead_ms=None)
            assert (await peer.until("context.done"))["reason"] == "end"
            over_tls = peer.pcm("t")
    async with running_node() as plain:
        assert await speak(plain.ws_url, TEXT, lead_ms=None) == over_tls


async def test_a_client_without_trust_in_the_certificate_gets_no_data(certificate: Certificate) -> None:
    async with running_node(tls=certificate.settings) as running, httpx.AsyncClient(trust_env=False) as untrusting:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await untrusting.get(running.url)
        with pytest.raises(httpx.RemoteProtocolError):
            await untrusting.get(running.url.replace("https", "http"))
        await until(lambda: not running.server.server_state.connections)


async def test_a_missing_handshake_is_cut_in_time(certificate: Certificate) -> None:
    """Guards the deadline in `Handshakes`."""
    async with running_node(tls=certificate.settings, timeouts={"handshake_s": 0.3}) as running, raw(running) as sock:
        async with asyncio.timeout(2):
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""


@pytest.mark.parametrize("sends", [b"", b"\x16\x03\x01\x40\x00"], ids=["nothing", "half a ClientHello"])
async def test_the_oldest_handshake_gives_way(certificate: Certificate, sends: bytes) -> None:
    """Guards `Handshakes.begin`, and its uses of the table of connections."""
    loop = asyncio.get_running_loop()
    async with running_node(tls=certificate.settings) as running, contextlib.AsyncExitStack() as knocks:
        table = running.server.config.table
        first, *others = [await knocks.enter_async_context(raw(running, sends)) for _ in range(MAX_HANDSHAKES)]
        await until(lambda: len(table) == MAX_HANDSHAKES)
        async with running.http(verify=certificate.client()) as client:
            assert (await client.get("/health")).status_code == 200
        async with asyncio.timeout(1):
            assert await loop.sock_recv(first, 1) == b""
        with pytest.raises(BlockingIOError):
            others[0].recv(1)
        await until(lambda: len(table) == MAX_HANDSHAKES - 1)
    assert not len(table)


@pytest.mark.parametrize("sends", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\xff\xff"], ids=["no TLS", "a long record"])
async def test_what_begins_no_handshake_is_cut_at_once(certificate: Certificate, sends: bytes) -> None:
    async with running_node(tls=certificate.settings) as running, raw(running, sends) as sock, asyncio.timeout(1):
        assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""


async def test_a_client_hello_in_pieces_is_taken(certificate: Certificate) -> None:
    """Byte by byte, and with the first request right behind the end of the handshake."""
    loop = asyncio.get_running_loop()
    async with running_node(tls=certificate.settings) as running, raw(running) as sock, asyncio.timeout(5):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = certificate.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in outgoing.read():
                    await loop.sock_sendall(sock, bytes([byte]))
                incoming.write(await loop.sock_recv(sock, 1 << 14))
        client.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await loop.sock_sendall(sock, outgoing.read())
        answer = b""
        while b"\r\n\r\n" not in answer:
            incoming.write(await loop.sock_recv(sock, 1 << 14))
            with contextlib.suppress(ssl.SSLWantReadError):
                answer += client.read()
        assert answer.startswith(b"HTTP/1.1 200 ")


def read_slowly(address: tuple[str, int], trust: ssl.SSLContext, body: bytes, bytes_per_s: int) -> bytes:
    """Read the answer to a speech request in small pieces. Blocks."""
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        plain.settimeout(5)
        plain.connect(address)
        with trust.wrap_socket(plain, server_hostname="localhost") as sock:
            sock.sendall(head + str(len(body)).encode() + b"\r\n\r\n" + body)
            answer = b""
            while piece := sock.recv(2_048):
                answer += piece
                time.sleep(len(piece) / bytes_per_s)
            return answer


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the bytes in a socket's buffers")
async def test_a_slow_reader_is_served_and_a_stopped_one_is_cut(certificate: Certificate) -> None:
    """As on a plain connection: the deadline of `Writer.room` and its cut work through TLS."""
    settings = {"tls": certificate.settings, "timeouts": {"write_s": WRITE_S}, "tone": {"char_ms": 400}}
    async with running_node(**settings) as running:
        address = running.server.servers[0].sockets[0].getsockname()
        body = json.dumps({"input": "a long text ", "response_format": "pcm"}).encode()
        answer = await asyncio.to_thread(read_slowly, address, certificate.client(), body, 100_000)
        assert answer.endswith(b"\r\n0\r\n\r\n"), len(answer)  # the end of a chunked body
        async with wire(running.ws_url, ssl=certificate.client(), rcvbuf=4_096) as dead:
            dead.socket.transport._ssl_protocol._transport.pause_reading()  # pyrefly: ignore[missing-attribute]  # the other reads ahead
            await dead.say("t", "a long text " * 30, lead_ms=None, timestamps="none")
            await until(lambda: running.node.service.speaking == 1)
            await until(lambda: running.node.service.speaking == 0, 8 * WRITE_S)
            assert running.node.metrics.registry.get_sample_value("agent_tts_refused_total", {"code": "slow_consumer"})
            dead.socket.transport.abort()


@pytest.mark.real_time
async def test_the_commands_speak_tls(certificate: Certificate, tmp_path: Path) -> None:
    trusting = {"SSL_CERT_FILE": str(certificate.cert)}
    async with running_node(tls=certificate.settings) as running:
        here = {"AGENT_TTS_PORT": running.url.rpartition(":")[2], "AGENT_TTS_TLS__CERT": str(certificate.cert)}
        for command, variables in (
            (("say", "Hello.", "--url", running.url, "-o", str(tmp_path / "out.wav")), trusting),
            (("health",), here),
            (("health", "--ready"), here),
            (("voices", "list", "--url", running.url), trusting),
        ):
            done = await asyncio.to_thread(invoke, *command, **variables)
            assert done.returncode == 0, done.stderr


async def test_the_client_library_speaks_tls(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    async with running_node(tls=certificate.settings) as running, connect(running.url) as node:
        speech = await node.open(lead_ms=None)
        speech.write(TEXT)
        speech.end()
        assert sum([len(pcm) async for pcm in speech]) > 24_000


# ---------------------------------------------------------------- files


def test_old_protocols_are_refused(certificate: Certificate) -> None:
    context = present(server_context(Tls(**certificate.settings)))
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_certificate_and_key_may_be_one_file(certificate: Certificate) -> None:
    both = certificate.cert.with_name("both.pem")
    both.write_bytes(certificate.cert.read_bytes() + certificate.key.read_bytes())
    assert server_context(Tls(cert=str(both))) is not None
    assert server_context(Tls()) is None


def test_unusable_files_are_errors_with_advice(certificate: Certificate, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other")
    locked = make_certificate(tmp_path / "locked", passphrase=b"sesame")
    for tls, said in (
        (Tls(cert="/no/such.pem"), r"tls\.cert: /no/such\.pem cannot be read: No such file"),
        (Tls(cert=str(certificate.cert), key="/no/such.key"), r"tls\.key: /no/such\.key cannot be read"),
        (Tls(cert=str(certificate.cert), key=str(other.key)), "does not belong to the certificate"),
        (Tls(cert=str(certificate.cert)), r"set tls\.key"),
        (Tls(cert=__file__), "is not a PEM certificate"),
        (Tls(cert=str(locked.cert), key=str(locked.key)), "has a passphrase"),
    ):
        with pytest.raises(SettingsError, match=said):
            server_context(tls)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tls\.key needs tls\.cert"):
        Settings.model_validate({"tls": {"key": "key.pem"}})
