"""Much of what is small: chunks of a byte, frames behind a close, lines of an offer, parts of an item."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from agent_tts.bench.statistics import background, together
from tests.attack.bodies import FORM, JSON, RULES_PATH, STORED, sent
from tests.attack.harness import Broken, Target, agent_node, attack
from tests.attack.prices import AT_ONCE, flooded
from tests.attack.realtime import SETTINGS, flood, sessions
from tests.attack.stalls import CONTEXTS, SLOTS, connected, frame, opened, text_frame

AT_A_TIME = 262_144  # bytes that a node reads at once

Opened = Callable[[Target], AbstractAsyncContextManager[asyncio.StreamWriter]]


async def poured(target: Target, piece: bytes, opening: Opened) -> str:
    """The same bytes without a pause, on connections that are opened again when they are cut."""
    data, end, size, count = piece * (AT_A_TIME // len(piece)), time.monotonic() + target.scaled(10, 0.5), 0, 0

    async def pour() -> None:
        nonlocal size, count
        while time.monotonic() < end:
            with contextlib.suppress(OSError, Broken, TimeoutError):
                async with asyncio.timeout(max(0.1, end - time.monotonic())), opening(target) as writer:
                    count += 1
                    while True:
                        writer.write(data)
                        await writer.drain()
                        size += len(data)
            await asyncio.sleep(0.02)

    await together(pour() for _ in range(AT_ONCE))
    return f"{size >> 20} MiB on {count} connections"


def posting(path: str) -> Opened:
    @asynccontextmanager
    async def opening(target: Target) -> AsyncIterator[asyncio.StreamWriter]:
        async with connected(target) as (_, writer):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.key}\r\n"
            writer.write(f"{head}Content-Type: {FORM}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            yield writer

    return opening


@asynccontextmanager
async def closing(target: Target) -> AsyncIterator[asyncio.StreamWriter]:
    async with opened(target) as socket:
        socket.send(frame(type="session.close"))
        yield socket.writer


@attack("chunks of a byte", settings=SLOTS)
async def chunks(target: Target) -> str:
    """Of a body with a clip, and where there is no route."""
    return "; ".join([await poured(target, b"1\r\nx\r\n", posting(path)) for path in ("/v1/audio/detect", "/x")])


@attack("frames behind a close", settings=SLOTS)
async def behind_close(target: Target) -> str:
    return await poured(target, text_frame("x"), closing)


@attack("an offer of 2 000 formats", settings=SLOTS)
async def formats(target: Target) -> str:
    lines = ["v=0", f"m=audio 9 UDP/TLS/RTP/SAVPF {' '.join(['0'] * 510)}", "a=mid:0", "a=rtcp-mux"]
    offer = {"type": "offer", "sdp": "\n".join([*lines, *["a=rtpmap:111 opus/48000/2"] * 2_000])}
    return await flooded(target, "POST", "/v1/rtc/offer", JSON, json.dumps(offer).encode())


@attack("long contexts without timestamps, cancelled at once", settings=SLOTS)
async def cancelled(target: Target) -> str:
    """None of their text has been spoken; the answers have all of it."""
    count, end = 0, time.monotonic() + target.scaled(15, 0.5)
    async with opened(target) as socket, background(socket.swallow(), "answers"):
        socket.send(frame(type="session.update", session={"timestamps": "none"}))
        while time.monotonic() < end:
            for number in range(CONTEXTS):
                socket.send(*[frame(type="text.append", context_id=f"{count}-{number}", text="a " * 2_000)] * 5)
            socket.send(frame(type="context.cancel", context_id="*"))
            await socket.writer.drain()
            count += 1
            await asyncio.sleep(0.5)
    return f"{count} times {CONTEXTS} contexts"


@attack("Realtime: an item of 4 000 parts", node=agent_node, settings=SETTINGS, warms=True)
async def parts(target: Target) -> str:
    item = {"type": "message", "role": "user", "content": [{}] * 4_000}
    message = json.dumps({"type": "conversation.item.create", "item": item}, separators=(",", ":"))
    return f"{await sessions(target, lambda socket: flood(target, socket, message))} messages"


@attack("dictionaries that other contexts have named", node=STORED, settings={**SLOTS, "dictionaries__limit": 2})
async def named_before(target: Target) -> str:
    """Each context begins when its connection has named another dictionary; both change all the time."""
    rules = [{"type": "alias", "string_to_replace": f"w{number}", "alias": "é" * 250} for number in range(1_000)]
    body = JSON, json.dumps({"name": "n", "rules": rules}, ensure_ascii=False).encode()
    made = []
    for _ in range(2):
        _, answer = await sent(target, "POST", f"{RULES_PATH}/add-from-rules", *body, whole=True)
        made.append(json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])["id"])
    contexts, end = 0, time.monotonic() + target.scaled(10, 0.5)

    async def change() -> None:
        while time.monotonic() < end:
            for id_ in made:
                await sent(target, "POST", f"{RULES_PATH}/{id_}/set-rules", *body, whole=True)

    async def speak() -> None:
        nonlocal contexts
        async with opened(target, "/v1/text-to-speech/tone-660/multi-stream-input") as socket:
            while time.monotonic() < end:
                for number, id_ in enumerate(made):
                    locators = [{"pronunciation_dictionary_id": id_}]
                    first = {"context_id": f"{contexts}-{number}", "text": " "}
                    socket.send(frame(**first, pronunciation_dictionary_locators=locators))
                for number in range(2):
                    socket.send(frame(context_id=f"{contexts}-{number}", text="Hello there. "))
                    socket.send(frame(context_id=f"{contexts}-{number}", close_context=True))
                contexts += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        while True:
                            await socket.read()

    await together([change(), speak(), speak()])
    return f"{contexts} pairs of contexts"
