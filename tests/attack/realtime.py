"""Eight sessions of the Realtime API: audio as fast as it is taken, turns without an end, cancelled answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agent_tts.bench.statistics import background
from tests.attack.harness import Target, agent_node, attack

SESSIONS = 8
SETTINGS = {
    "agent__stt__kind": "scripted",
    "agent__llm__base_url": "http://127.0.0.1:9/v1",
    "agent__calls": 3 * SESSIONS,
    "limits__sessions_per_key": 32,
    "slots": 64,
}


def noise(seconds: float) -> str:
    """Sound like speech, 24 kHz, in base64."""
    rng, count = np.random.default_rng(1), int(24_000 * seconds)
    loud = np.sin(np.arange(count) / 24_000 * 2 * np.pi * 3) > 0
    return base64.b64encode((rng.normal(0, 6_000, count) * loud).astype("<i2").tobytes()).decode()


async def sessions(target: Target, one: Callable[[ClientConnection], Awaitable[int]]) -> int:
    """Have each of the sessions do this for a while; returns the sum of what they tell."""
    async with AsyncExitStack() as stack:
        url = f"{target.url.replace('http', 'ws', 1)}/v1/realtime?model=x"
        sockets = [
            await stack.enter_async_context(connect(url, additional_headers=target.headers, max_size=None))
            for _ in range(SESSIONS)
        ]
        for socket in sockets:
            await stack.enter_async_context(background(drop(socket), "answers"))
        return sum(await asyncio.gather(*map(one, sockets)))


async def drop(socket: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass


async def flood(target: Target, socket: ClientConnection, *messages: str) -> int:
    """Send these messages again and again; returns how many were taken."""
    sent = 0
    with contextlib.suppress(TimeoutError, ConnectionClosed):
        async with asyncio.timeout(target.scaled(15, 2)):
            for message in itertools.cycle(messages):
                await socket.send(message)
                sent += 1
                await asyncio.sleep(0)
    return sent


@attack("Realtime: audio faster than it is spoken", node=agent_node, settings=SETTINGS, warms=True)
async def audio(target: Target) -> str:
    piece = json.dumps({"type": "input_audio_buffer.append", "audio": noise(10)})
    return f"{await sessions(target, lambda socket: flood(target, socket, piece))} pieces of 10 s"


@attack("Realtime: turns without an end", node=agent_node, settings=SETTINGS, warms=True)
async def commits(target: Target) -> str:
    manual = json.dumps({"type": "session.update", "session": {"audio": {"input": {"turn_detection": None}}}})
    piece = json.dumps({"type": "input_audio_buffer.append", "audio": noise(0.1)})
    commit = '{"type":"input_audio_buffer.commit"}'

    async def one(socket: ClientConnection) -> int:
        await socket.send(manual)
        return await flood(target, socket, piece, commit)

    return f"{await sessions(target, one)} messages"


@attack("Realtime: answers that are cancelled", node=agent_node, settings=SETTINGS, warms=True)
async def cancelled(target: Target) -> str:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "word " * 2_000}]}
    first = json.dumps({"type": "conversation.item.create", "item": item})

    async def one(socket: ClientConnection) -> int:
        await socket.send(first)
        return await flood(target, socket, '{"type":"response.create"}', '{"type":"response.cancel"}')

    return f"{await sessions(target, one)} messages"
