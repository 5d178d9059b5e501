"""Attacks that belong to no other area: TLS handshakes that strangers begin."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_tts.bench.node import MeasuredNode, own_node
from agent_tts.bench.statistics import background
from tests.attack.harness import Broken, Target, attack
from tests.attack.stalls import CONTEXTS, SESSIONS, SLOTS, frame, opened
from tests.certificates import make_certificate

HALF = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + b"a" * 12_000  # of a record of 16 KiB
KEPT = 600  # connections that the attacker keeps open
AT_ONCE = 40
PAUSE_S = 0.05
MAX_TLS_MIB = 48.0  # memory at any time, more than before


@asynccontextmanager
async def tls_node(settings: Mapping[str, object]) -> AsyncIterator[MeasuredNode]:
    """A node with a certificate that this process and its children trust."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        certificate = make_certificate(Path(folder))
        patch.setenv("SSL_CERT_FILE", str(certificate.cert))
        files = {f"tls__{key}": path for key, path in certificate.settings.items()}
        async with own_node("serve", **settings, **files) as node:
            yield node


def client_hello() -> bytes:
    """What a client sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


async def begin_handshakes(target: Target, sends: bytes, seconds: float) -> str:
    """Open connections that send this and stay, in bursts. Raises Broken: they take memory."""
    before = most = target.rss_mib()
    opened: deque[socket.socket] = deque()
    count, end = 0, time.monotonic() + seconds

    async def open_one() -> None:
        opened.append(sock := socket.socket())
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", target.port))
            sock.send(sends)

    try:
        while time.monotonic() < end:
            await asyncio.gather(*(open_one() for _ in range(AT_ONCE)))
            count += AT_ONCE
            while len(opened) > KEPT:
                opened.popleft().close()
            most = max(most, target.rss_mib())
            await asyncio.sleep(PAUSE_S)
    finally:
        for sock in opened:
            sock.close()
    if most > before + MAX_TLS_MIB:
        raise Broken(f"handshakes take {most - before:.0f} MiB")
    return f"{count} handshakes, {most - before:.0f} MiB"


@attack("TLS handshakes whose ClientHello never ends", node=tls_node)
async def half_hellos(target: Target) -> str:
    """OpenSSL would hold 50 to 300 KiB for each."""
    return await begin_handshakes(target, HALF, target.scaled(20, 0.5))


@attack("TLS handshakes that are never finished", node=tls_node)
async def whole_hellos(target: Target) -> str:
    """Each costs a signature: all that have come would be answered before the next frame."""
    return await begin_handshakes(target, client_hello(), target.scaled(20, 0.5))


TEXTS = {
    "digits": "1234567890 " * 360,
    "times": "12:34:56 " * 440,
    "dots": "." * 4_000,
    "initials": "a." * 2_000,
    "emoji": "\N{GRINNING FACE}" * 4_000,
    "marks": "e" + "\N{COMBINING ACUTE ACCENT}" * 3_999,
    "one word": "a" * 4_000,
    "brackets": "[" * 4_000,
    "stars": "**a" * 1_300,
    "spaces": " " * 4_000,
    "tags": "<break time=" * 330,
    "han": "\u4f60\u597d" * 2_000,
}


@attack("texts that take long to read", settings=SLOTS)
async def costly_texts(target: Target) -> str:
    """As many contexts as a key may have, each with a message of one kind, cancelled and opened again."""
    count = 0
    end = time.monotonic() + target.scaled(30, 0.7)

    async def read_them(first: int) -> None:
        nonlocal count
        async with opened(target) as socket, background(socket.swallow(), "reads"):
            for number in itertools.count(first):
                text = list(TEXTS.values())[number % len(TEXTS)]
                for context in range(CONTEXTS):
                    name = f"{number}-{context}"
                    socket.send(
                        frame(type="context.open", context_id=name, normalize=True, lead_ms=1_000),
                        frame(type="text.append", context_id=name, text=text),
                    )
                    count += 1
                await asyncio.sleep(0.3)
                if time.monotonic() > end:
                    return
                socket.send(frame(type="context.cancel", context_id="*"))

    await asyncio.gather(*(read_them(session) for session in range(SESSIONS)))
    return f"{count} texts"
