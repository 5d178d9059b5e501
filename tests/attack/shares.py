"""One key takes all there is: every slot, the queue, tokens, sessions. Another key still gets its share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Any

import httpx
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed

from agent_tts.bench.connection import RawConnection, dial
from agent_tts.bench.statistics import background
from agent_tts.client import connect
from agent_tts.errors import SpeechError
from tests.attack.harness import Broken, Target, attack

TOKENS = 12  # sessions that a key may open with tokens
NODE = {"slots": 64, "limits__token_sessions_per_key": TOKENS}
SESSIONS, CONTEXTS = 4, 16  # of the attacker's key: all slots
ASKED = 10  # contexts that the other key asks for at once
# `timeouts.queue_s` and what a first audio takes: within this each has a slot and, in `make attack`, its first audio.
WAIT_S = 2.0
LONG = "It speaks without a pause, and it does not end. " * 4  # about 12 s


async def first_audio_s(target: Target) -> list[float]:
    """How long the other key waits for the first audio of `ASKED` contexts. Raises what refuses one."""
    async with connect(target.url, api_key=target.other_key) as node:

        async def one() -> float:
            asked = time.monotonic()
            async with node.begin() as speech:
                speech.write("Somebody else would like to speak, too.")
                speech.end()
                heard_s = 0.0
                async for _ in speech:
                    heard_s = heard_s or time.monotonic() - asked
                return heard_s

        return await asyncio.gather(*(one() for _ in range(ASKED)))


class Hog:
    """The attacker's contexts, opened again when they are ended, with the errors that it is told."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.codes: Counter[str] = Counter()
        self.waits_ms: list[int] = []

    async def hold(self, text: str, every_s: float) -> None:
        """Hold every slot: each context gets the text now and each `every_s`, at times of its own."""
        connections = [await dial(self._target.ws_url, self._target.key) for _ in range(SESSIONS)]
        try:
            for connection in connections:
                connection.observer = self._observer(connection, text)
            pause_s = 0.0  # until every slot is taken
            while True:
                for number in range(CONTEXTS):
                    for connection in connections:
                        connection.send("text.append", context_id=str(number), text=text)
                        await asyncio.sleep(pause_s)
                pause_s = every_s / (SESSIONS * CONTEXTS)
        finally:
            await asyncio.gather(*(connection.close() for connection in connections))

    def _observer(self, connection: RawConnection, text: str) -> Any:
        def hear(message: dict[str, Any]) -> None:
            if message["type"] == "error" and message.get("context_id"):
                self.codes[message["code"]] += 1
                if message["code"] == "at_capacity":
                    self.waits_ms.append(message["retry_after_ms"])
            elif message["type"] == "context.done" and message["reason"] == "error":  # it asks again at once
                connection.send("context.end", context_id=message["context_id"])
                connection.send("text.append", context_id=message["context_id"], text=text)

        return hear


async def squeezed(target: Target, text: str, every_s: float) -> str:
    hog, slowest_s, asked = Hog(target), 0.0, 0
    until = time.monotonic() + target.scaled(30, 1.5)
    async with background(hog.hold(text, every_s), "the attacker"):
        await asyncio.sleep(1.5)
        while time.monotonic() < until or not hog.codes:  # `ATTACK_S` is the longest
            slowest_s = max(slowest_s, *await first_audio_s(target))
            asked += ASKED
    if slowest_s > WAIT_S and not target.short:
        raise Broken(f"another key waited for {slowest_s:.1f} s")
    return f"another key had {asked} of {asked} contexts, in {slowest_s * 1_000:.0f} ms at most; {dict(hog.codes)}"


@attack("a word each 8 s in all slots", settings=NODE)
async def idle_slots(target: Target) -> str:
    return await squeezed(target, "word ", 8.0)


@attack("speech without end in all slots", settings=NODE)
async def busy_slots(target: Target) -> str:
    return await squeezed(target, LONG, 8.0)


@attack("sessions by tokens", settings=NODE)
async def token_sessions(target: Target) -> str:
    """What a key opens with tokens takes neither its own sessions nor those of others."""
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=20) as client:
        opened, refused = 0, ""
        async with contextlib.AsyncExitStack() as held:
            for _ in range(2 * TOKENS):
                token = (await client.post("/v1/tokens")).json()["token"]
                socket = await held.enter_async_context(open_socket(f"{target.ws_url}?token={token}"))
                if '"session.created"' not in await socket.recv(decode=True):
                    refused = token
                    break
                opened += 1
            if opened != TOKENS:
                raise Broken(f"{opened} sessions were opened by tokens")
            try:
                for key in (target.key, target.other_key):
                    async with connect(target.url, api_key=key):
                        pass
            except SpeechError as error:
                raise Broken(f"a key is refused: {error.message}") from None
        for _ in range(50):  # the sessions end
            with contextlib.suppress(ConnectionClosed):
                async with open_socket(f"{target.ws_url}?token={refused}") as socket:
                    if '"session.created"' in await socket.recv(decode=True):
                        return f"{opened} sessions by tokens, a refused token opened the next"
            await asyncio.sleep(0.1)
    raise Broken("a refused session burned its token")


@attack("one key's tokens", settings=NODE)
async def tokens(target: Target) -> str:
    """One key asks for tokens without end: another key's page gets one that is good."""
    count, at_once = int(target.scaled(10_000, 2_100)), 50
    answers: Counter[int] = Counter()
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=20) as client:
        for _ in range(count // at_once):
            found = await asyncio.gather(*(client.post("/v1/tokens") for _ in range(at_once)))
            answers.update(response.status_code for response in found)
        client.headers["Authorization"] = f"Bearer {target.other_key}"
        answer = await client.post("/v1/tokens")
    if answer.status_code != 200:
        raise Broken(f"another key's token is refused: {answer.text}")
    async with open_socket(f"{target.ws_url}?token={answer.json()['token']}") as socket:
        if '"session.created"' not in (greeting := str(await socket.recv())):
            raise Broken(f"another key's token opens nothing: {greeting}")
    return f"answers {dict(answers)}, another key's token is good"
