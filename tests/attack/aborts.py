"""Clients that leave in the middle of everything. Beside them a bystander's audio does not change by one bit.

On a GPU, with `--set qwen3.reproducible=true`, these reach every path of the neural engine: requests that end in the
queue, before and in their prompt, between two frames, and in the step that would have ended them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import httpx

from agent_tts.bench.connection import dial
from agent_tts.client import connect
from agent_tts.errors import SpeechError
from tests.attack.harness import Broken, Target, attack
from tests.attack.stalls import connected
from tests.attack.strangers import SOCKETS, WS_HEAD

# Room for three polite contexts beside 61 of the attacker's: what leaves is replaced at once. And for the sessions of
# hostile peers, which stay until they are silent for some seconds.
ROOM = {"slots": 64, "limits__sessions_per_key": 64}
TEXT = "Somebody who speaks here leaves in the middle of a sentence, and nobody else hears of it. " * 2
WITNESS = "The bystander says the same words each time, and each time they sound the same."
AT_ONCE = 12
LONGEST_S = 1.2  # of what is left alone before it ends


async def by_reset(target: Target, chance: random.Random) -> None:
    """Open some contexts, then reset the connection."""
    connection = await dial(target.ws_url, target.key)
    for number in range(4):
        connection.send("text.append", context_id=str(number), text=TEXT)
    await asyncio.sleep(chance.uniform(0, LONGEST_S))
    await connection.close(reset=chance.random() < 0.5)


async def by_handshake(target: Target, chance: random.Random) -> None:
    """Reset the connection within the handshake, with it, or right after its end."""
    head = WS_HEAD.format(path=chance.choice(SOCKETS)) + f"Authorization: Bearer {target.key}\r\n"
    whole = f"{head}Connection: Upgrade\r\n\r\n".encode()
    for _ in range(16):
        async with connected(target) as (_, writer):  # resets it
            writer.write(whole[: chance.choice([len(whole), chance.randrange(1, len(whole))])])
            await asyncio.sleep(chance.choice([0, 0, chance.uniform(0, 0.01)]))


async def by_cancel(target: Target, chance: random.Random) -> None:
    """Cancel contexts at any time: in the queue, before their first audio, twice, after their end."""
    connection = await dial(target.ws_url, target.key)
    for number in range(8):
        connection.send("context.open", context_id=str(number), lead_ms=chance.choice([None, 240, 5_000]))
        connection.send("text.append", context_id=str(number), text=TEXT[: chance.randrange(1, len(TEXT))])
        await asyncio.sleep(chance.choice([0, 0, chance.uniform(0, LONGEST_S / 4)]))
        if chance.random() < 0.5:
            connection.send("context.end", context_id=str(number))
        for _ in range(chance.randrange(1, 3)):
            connection.send("context.cancel", context_id=chance.choice([str(number), "*"]))
    await asyncio.sleep(chance.uniform(0, 0.1))
    await connection.close()


async def by_http(target: Target, chance: random.Random) -> None:
    """Leave an HTTP response."""
    body = {"input": TEXT, "response_format": chance.choice(["pcm", "wav", "mp3"])}
    async with httpx.AsyncClient(headers=target.headers, timeout=chance.uniform(0.02, LONGEST_S)) as client:
        with contextlib.suppress(httpx.HTTPError):
            async with client.stream("POST", f"{target.url}/v1/audio/speech", json=body) as response:
                async for _ in response.aiter_raw(4_096):
                    if chance.random() < 0.1:
                        break


WAYS: tuple[Callable[[Target, random.Random], Coroutine[Any, Any, None]], ...] = (
    by_reset,
    by_handshake,
    by_cancel,
    by_http,
)


@attack("clients that leave at any time", settings=ROOM)
async def leave(target: Target) -> str:
    chance = random.Random(0)
    expected = await witness(target)
    until = asyncio.get_running_loop().time() + target.scaled(30, 1.5)
    left = 0

    async def come_and_go() -> None:
        nonlocal left
        while asyncio.get_running_loop().time() < until:
            with contextlib.suppress(SpeechError, TimeoutError):  # no slot: the storm is its own crowd
                await chance.choice(WAYS)(target, chance)
            left += 1

    async with asyncio.TaskGroup() as tasks:
        said = tasks.create_task(unchanged(target, expected, until))
        for _ in range(AT_ONCE):
            tasks.create_task(come_and_go())
    if not said.result():
        raise Broken("the bystander never spoke to the end")
    return f"{left} clients left, a bystander's {said.result()} texts are equal"


async def unchanged(target: Target, expected: bytes, until: float) -> int:
    """How often a bystander says this, until then. Raises Broken: it sounds otherwise."""
    said = 0
    while asyncio.get_running_loop().time() < until:
        if await witness(target) != expected:
            raise Broken("the audio of a bystander changed")
        said += 1
    return said


async def witness(target: Target) -> bytes:
    """The bystander's audio, fast and with a fixed seed; asked again while no slot is free."""
    while True:
        try:
            async with connect(target.url, api_key=target.other_key) as node:
                utterance = node.begin(seed=7, lead_ms=None)
                utterance.write(WITNESS)
                utterance.end()
                return b"".join([pcm async for pcm in utterance])
        except SpeechError as error:
            if error.retry_after_ms is None:
                raise
            await asyncio.sleep(error.retry_after_ms / 1_000)
