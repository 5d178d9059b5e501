"""Hostile input over real sockets, all of it at once: each case is refused or cut, and other clients do not notice.

`tests/serve/processes/test_server.py` covers floods and slow senders; each case here is invalid in one way. `harmless`
runs a normal client beside them, checks its audio and timing, and checks memory and connections.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import wave
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np

from agent_tts.engine_info import Model
from tests.serve.processes.test_server import FAST, HEAD, HEALTH, HELLO, UPGRADE, harmless, raw, read_all
from tests.support import RunningNode, app_with, running_app, running_node, settings_of, with_models

AT_ONCE = 5  # connections of each case
SPEECH = b"POST /v1/audio/speech HTTP/1.1\r\nContent-Type: application/json\r\n" + HEAD
BODY = b'{"input":"x","response_format":"pcm"}'
CLOSE = b"Connection: close\r\n"
ONCE = b" HTTP/1.1\r\n" + HEAD + CLOSE + b"\r\n"
CUT = b""
MIB = 1 << 20


def length(body: bytes, size: int | None = None) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % (len(body) if size is None else size) + body


# Bytes sent, and the allowed statuses of the answer. CUT: closed without an answer.
HTTP: dict[str, tuple[bytes, set[bytes]]] = {
    "a header of 64 KiB": (HEALTH + b"X: " + b"x" * 65_536 + b"\r\n\r\n", {b"400", CUT}),
    "10 000 headers": (HEALTH + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)) + b"\r\n", {b"400", CUT}),
    "a header with a NUL": (HEALTH + b"X: a\0b\r\n\r\n", {b"400"}),
    "a folded header": (HEALTH + CLOSE + b"X: a\r\n b\r\n\r\n", {b"400"}),
    "an unknown method": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), {b"400"}),  # TLS
    "another version": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {b"400"}),
    "two lengths": (SPEECH + CLOSE + b"Content-Length: 9\r\n" + length(BODY), {b"400"}),
    "a length and chunks": (SPEECH + CLOSE + b"Transfer-Encoding: chunked\r\n" + length(b"0\r\n\r\n"), {b"400"}),
    "a negative length": (SPEECH + CLOSE + b"Content-Length: -1\r\n\r\n", {b"400"}),
    "a length of 40 digits": (SPEECH + CLOSE + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", {b"400"}),
    "a length beyond the limit": (SPEECH + length(BODY, 6 * MIB), {b"413"}),
    "a chunk without end": (SPEECH + CLOSE + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", {b"400"}),
    "chunks of a byte": (SPEECH + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n{\r\n" * 2_000, {b"400"}),
    "less than the length": (SPEECH + length(BODY, len(BODY) + 10), {b"408"}),
    "more than the length": (SPEECH + CLOSE + length(BODY) + b"x" * 5_000, {b"200"}),
    "an unknown expectation": (SPEECH + CLOSE + b"Expect: money\r\n" + length(BODY), {b"200"}),
    "a gzip bomb": (SPEECH + CLOSE + b"Content-Encoding: gzip\r\n" + length(gzip.compress(bytes(20 * MIB))), {b"400"}),
    "ranges of the page": (
        b"GET /web/app.js HTTP/1.1\r\n" + HEAD + CLOSE + b"Range: bytes=" + b"0-0," * 1_000 + b"1-1\r\n\r\n",
        {b"200"},
    ),
    "a path out of the page's folder": (
        b"GET /web/../../pyproject.toml HTTP/1.1\r\n" + HEAD + CLOSE + b"\r\n",
        {b"404"},
    ),
    "the same, encoded": (b"GET /web/%2e%2e%2f%2e%2e%2fpyproject.toml HTTP/1.1\r\n" + HEAD + CLOSE + b"\r\n", {b"404"}),
    "an unfinished upgrade": (HELLO[:-2], {CUT}),
    "an upgrade to something else": (HEALTH + CLOSE + b"Upgrade: h2c\r\n\r\n", {b"200"}),
    "an upgrade of a page": (b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n", {b"403"}),
    "an upgrade by POST": (b"POST /v1/tts/stream HTTP/1.1\r\n" + UPGRADE + b"\r\n", {b"405"}),
    "an upgrade with an old version": (HELLO.replace(b"Version: 13", b"Version: 8"), {b"400"}),
    "an upgrade with a wrong key": (HELLO.replace(b"Key: A", b"Key: ?"), {b"400"}),
}


async def at_once(attacks: Iterable[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for attack in attacks:
            for _ in range(AT_ONCE):
                tasks.create_task(attack())


async def status_of(running: RunningNode, sent: bytes) -> bytes:
    """Status of the answer, CUT if the connection is closed without one. It always ends."""
    async with raw(running, rcvbuf=65_536) as sock:
        try:
            await asyncio.get_running_loop().sock_sendall(sock, sent)
            answer = await read_all(sock)
        except ConnectionError:
            return CUT
    return answer.split()[1] if answer else CUT


async def test_invalid_http_requests() -> None:
    """Guards the limits of `HttpProtocol` and `read_body`, and that the page is served from its folder alone."""

    async with running_node(timeouts=FAST) as running, harmless(running, within_s=10.0):

        async def send(what: str, sent: bytes, answers: set[bytes]) -> None:
            assert await status_of(running, sent) in answers, what

        await at_once([partial(send, what, *rest) for what, rest in HTTP.items()])


# ---------------------------------------------------------------- uploads


def silent_flac(hours: float) -> bytes:
    """A small file that decodes to hundreds of megabytes an hour."""
    out, rate = io.BytesIO(), 8_000
    with av.open(out, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=rate)
        stream.layout = "mono"
        second = np.zeros((1, rate * 60), np.int16)
        for _ in range(round(hours * 60)):
            block = av.AudioFrame.from_ndarray(second, format="s16", layout="mono")
            block.rate = rate
            container.mux(stream.encode(block))
        container.mux(stream.encode(None))
    return out.getvalue()


def claiming_wav(size: int) -> bytes:
    """A WAV whose header claims more data than follows."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(bytes(1_000))
    data = bytearray(out.getvalue())
    data[40:44] = size.to_bytes(4, "little")
    return bytes(data)


async def test_upload_bombs(tmp_path: Path) -> None:
    """Guards `voices.clip_bytes`, the decoder's limits and MAX_UPLOADS: uploads are refused and nothing is stored."""
    settings = settings_of(voices={"folder": str(tmp_path / "library"), "clip_bytes": 5 * MIB}, timeouts=FAST)
    bombs = {
        "6 MiB": bytes(6 * MIB),
        "an hour of silence": silent_flac(1.0),
        "a header that promises 4 GiB": claiming_wav(0xFFFFFFFF),
        "gzip": gzip.compress(bytes(20 * MIB)),
        "nothing": b"",
    }
    assert len(bombs["an hour of silence"]) < MIB
    async with running_app(app_with(settings, with_models(Model("base", "cloned", "nowhere", 1_024)))) as running:
        async with harmless(running, within_s=20.0), httpx.AsyncClient(base_url=running.url) as http:
            for what, clip in bombs.items():
                files = {"audio_sample": ("clip.wav", clip)}
                fields = {"name": "bob", "consent": "yes, it is mine"}
                try:
                    answer = await http.post("/v1/audio/voices", data=fields, files=files)
                except httpx.TransportError:  # closed while the client was sending
                    assert what == "6 MiB"
                    continue
                assert answer.status_code in (400, 413), (what, answer.text)
    assert not (tmp_path / "library").exists() or not list((tmp_path / "library").iterdir())
