"""Texts that crash espeak-ng, and a killer of its processes: the engine process lives on, and nobody else hears it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time

import httpx

from agent_tts.bench.node import children_of
from agent_tts.client import connect
from tests.attack.aborts import unchanged, witness
from tests.attack.harness import Broken, Target, attack
from tests.fuzz.espeak import KILLER_LANGUAGES, KILLERS, text_of

ESPEAK = {"engine": "espeak", "slots": 64}
ANSWER_S = 30.0
AT_ONCE = 4
BACK_MS = 100.0  # for the first audio after all workers were killed; in tests, which share their cores, `BACK_SHORT_MS`
BACK_SHORT_MS = 10_000.0


@attack("texts that crash espeak-ng", settings=ESPEAK)
async def killer_texts(target: Target) -> str:
    """Each language speaks each text, as it is and among random ones."""
    engines = target.engine_pids
    chance = random.Random(0)
    bodies = [
        {"input": text, "model": f"tts-1-{language}", "response_format": "pcm"}
        for language in KILLER_LANGUAGES
        for text in (*KILLERS, *(text_of(chance, language) for _ in range(int(target.scaled(40, 1)))))
    ]
    room = asyncio.Semaphore(AT_ONCE)
    cut = 0

    async def ask(client: httpx.AsyncClient, body: dict[str, str]) -> None:
        nonlocal cut
        async with room:
            try:
                while (answer := await client.post("/v1/audio/speech", json=body)).status_code == 503:
                    await asyncio.sleep(0.2)  # at capacity
            except httpx.RemoteProtocolError:  # its beginning was heard before it crashed
                cut += 1
                return
            if answer.status_code not in (200, 400):  # 400: nothing to speak
                raise Broken(f"{answer.status_code} for {body['input']!a} in {body['model']}")

    async with (
        httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=ANSWER_S) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for body in bodies:
            tasks.create_task(ask(client, body))
    if target.engine_pids != engines:
        raise Broken("an engine process ended")
    return f"{len(bodies)} texts in {len(KILLER_LANGUAGES)} languages, {cut} cut"


@attack("processes of espeak-ng are killed", settings=ESPEAK)
async def killed_workers(target: Target) -> str:
    """At random while others speak; now and then all of them at once."""
    engines = target.engine_pids
    expected = await witness(target)
    chance = random.Random(0)
    until = asyncio.get_running_loop().time() + target.scaled(20, 1.5)
    killed = 0

    async def kill() -> None:
        nonlocal killed
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            killed += _kill(target, chance.choice([1, 2]))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kill())
        said = tasks.create_task(unchanged(target, expected, until))
    times = sorted([await _first_audio_ms(target) for _ in range(9)])
    if times[4] > target.scaled(BACK_MS, BACK_SHORT_MS):
        raise Broken(f"speech is back {times[4]:.0f} ms after a kill")
    if target.engine_pids != engines:
        raise Broken("an engine process ended")
    return f"{killed} killed, a bystander's {said.result()} texts are equal, back in {times[4]:.0f} ms"


def _kill(target: Target, count: int) -> int:
    """Kill some processes of espeak-ng; returns how many."""
    pids = [pid for engine in target.engine_pids for pid in children_of(engine)][:count]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


async def _first_audio_ms(target: Target) -> float:
    """From killing all to the first audio of an utterance."""
    async with connect(target.url, api_key=target.other_key) as node:
        _kill(target, 2)
        start = time.monotonic()
        utterance = node.begin()
        utterance.write("hello there ")
        async for _ in utterance:
            return (time.monotonic() - start) * 1_000
    raise Broken("no audio")
