"""What stands around a node: a telephone carrier's calls, and Home Assistant's protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from agent_tts.bench.node import MeasuredNode, own_node
from agent_tts.bench.statistics import background, percentile
from agent_tts.config.loading import data_folder
from tests.agent.test_phone import OPENINGS
from tests.attack.harness import Broken, Target, attack
from tests.attack.realtime import drop
from tests.attack.stalls import SLOTS

CALLS, SETTINGS = 4, {**SLOTS, "agent__stt__kind": "scripted", "agent__llm__base_url": "http://127.0.0.1:9/v1"}
SECOND = b"\x80\x20" * 4_000  # of loud mu-law
IDLE, FLOODS = 64, 8  # clients of Wyoming
FIRST_AUDIO_MS, FIRST_AUDIO_SHORT_MS = 100.0, 5_000.0  # of a client beside them, p95
STARTS_S = 30.0


def phone_node(settings: Mapping[str, object]) -> AbstractAsyncContextManager[MeasuredNode]:
    """A node with the telephone pipeline."""
    return own_node(str(data_folder("pipelines") / "phone.py"), **settings)


@attack("a carrier's audio faster than it is spoken", node=phone_node, settings=SETTINGS, warms=True)
async def fast_carrier(target: Target) -> str:
    """Each call sends a second in a message, and one that is too long, as fast as they are taken, and a list."""
    url = f"{target.url.replace('http', 'ws', 1)}/api/phone/twilio?key={target.key}"
    audio = [{"payload": base64.b64encode(SECOND * length).decode(), "track": "inbound"} for length in (1, 6)]
    media = [json.dumps({"event": "media", "streamSid": "MZ1", "media": each}) for each in audio]
    sent = 0

    async def call() -> None:
        nonlocal sent
        async with connect(url, max_size=None) as socket, background(drop(socket), "audio"):
            for opening in OPENINGS["twilio"]:
                await socket.send(json.dumps(opening))
            await socket.send("[1]")
            while True:
                for message in media:
                    await socket.send(message)
                sent += 7
                await asyncio.sleep(0)

    async def calls() -> None:
        while True:
            with contextlib.suppress(ConnectionClosed, OSError):
                await call()
            await asyncio.sleep(0.05)

    before = most = target.rss_mib()
    async with AsyncExitStack() as stack:
        for _ in range(CALLS):
            await stack.enter_async_context(background(calls(), "calls"))
        end = time.monotonic() + target.scaled(20, 1)
        while time.monotonic() < end:
            await asyncio.sleep(0.25)
            most = max(most, target.rss_mib())
    return f"{sent} s of audio, {most - before:.0f} MiB more meanwhile"


@asynccontextmanager
async def wyoming(target: Target) -> AsyncIterator[int]:
    """The port of a server of Wyoming in front of the node."""
    probe = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = probe.sockets[0].getsockname()[1]
    probe.close()
    await probe.wait_closed()
    place = ("--uri", f"tcp://127.0.0.1:{port}", "--url", target.url, "--key", target.other_key)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "agent_tts", "wyoming", *place)
    try:
        async with asyncio.timeout(STARTS_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def first_audio_ms(port: int) -> float:
    """How long a client waits for its first audio. Raises Broken: there is none."""
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b'{"type":"synthesize","data":{"text":"Hello there."}}\n')
        async with asyncio.timeout(FIRST_AUDIO_SHORT_MS / 1_000):
            while b'"audio-chunk"' not in await reader.readline():
                if reader.at_eof():
                    raise Broken("a client of Wyoming is turned away")
    finally:
        writer.transport.abort()
    return (time.monotonic() - began) * 1_000


@attack("Wyoming: idle clients, and floods", settings=SLOTS)
async def floods(target: Target) -> str:
    events = b'{"type":"describe"}\n{"type":"ping"}\n' * 500
    async with wyoming(target) as port, AsyncExitStack() as stack:

        async def flood() -> None:
            while True:
                with contextlib.suppress(OSError):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    try:
                        while True:
                            writer.write(events)
                            await reader.read(1 << 18)
                            await writer.drain()
                    finally:
                        writer.transport.abort()

        for _ in range(IDLE):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)  # it would be closed when nothing holds it
        calm = [await first_audio_ms(port) for _ in range(3)]
        for _ in range(FLOODS):
            await stack.enter_async_context(background(flood(), "floods"))
        found, end = [], time.monotonic() + target.scaled(15, 0.5)
        while time.monotonic() < end:
            found.append(await first_audio_ms(port))
            await asyncio.sleep(0.05)
    p95 = percentile(found, 95) or 0.0
    if p95 > (FIRST_AUDIO_SHORT_MS if target.short else FIRST_AUDIO_MS):
        raise Broken(f"first audio after {p95:.0f} ms beside floods, {max(calm):.0f} ms without")
    return f"first audio {max(calm):.0f} ms, beside floods p95 {p95:.0f} ms"
