"""What ended a connection, a front or a node: words that are said otherwise, many keys, and files that are broken."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from agent_tts.bench.connection import dial
from agent_tts.bench.node import processes_of
from tests.attack.bodies import FOLDERS, JSON, TEXT, VOICE, prepared_node, sent
from tests.attack.harness import Broken, Target, attack
from tests.attack.polite import Caller, Heard
from tests.attack.prices import TWO_FRONTS, again_at_once, speech_body
from tests.attack.stalls import SLOTS, told

BACK_S = 20.0  # for a front to be replaced, or for settings to be read
KEYS = 1_000  # the documented most
QUOTA = 1_000  # characters a minute of a named key
LONGEST_WAIT_S = 300.0  # that a key is told to wait
SAID = {"calmly": {"alias": "with calm"}}
BOMB = "\n".join(["a0: &a0 {x: y}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 12)}]}}" for n in range(1, 9))])
REREAD = "SIGHUP: the settings are read again"


def lexicon_file(folder: Path) -> Path:
    return folder / "lexicon.yaml"


def _with_lexicon_and_quota(folder: Path) -> Mapping[str, object]:
    lexicon_file(folder).write_text("nginx: engine x\n")
    quota = {"shop": {"key": "secret-of-the-shop", "characters_per_minute": QUOTA}}
    return {"lexicon_file": lexicon_file(folder), "log_level": "info", "auth__keys": json.dumps(quota)}


def _with_keys(_: Path) -> Mapping[str, object]:
    return {"auth__keys": json.dumps({f"customer-{n:04}": {"key": f"secret-of-{n:04}"} for n in range(KEYS)})}


async def until(holds: Callable[[], object], what: str) -> None:
    """Wait for it. Raises Broken."""
    for _ in range(int(BACK_S / 0.05)):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise Broken(what)


async def speaks(target: Target, **fields: object) -> None:
    """Raises Broken: a built-in voice does not speak."""
    status, audio = await sent(target, "POST", "/v1/audio/speech", JSON, speech_body("Hello there.", **fields))
    if status != 200 or not audio:
        raise Broken(f"a built-in voice is answered by {status}")


async def ready(target: Target) -> bool:
    with contextlib.suppress(Broken, OSError):
        return (await sent(target, "GET", "/ready"))[0] == 200
    return False


@attack("a word said otherwise, without timestamps", settings=SLOTS)
async def said_otherwise(target: Target) -> str:
    """Each context is spoken to its end; one is paced, and its audio is longer than the longest lead."""
    connection = await dial(target.ws_url, target.key)
    caller = Caller(target.ws_url, target.key)
    kinds: dict[str, dict[str, object]] = {"lexicon": {"lexicon": SAID}, "markup": {"markup": "auto"}, "plain": {}}
    words = "all of this goes on calmly "
    texts = {"markup": f'<sub alias="with calm">calmly</sub> <phoneme ph="x">calmly</phoneme> {words}'}
    for kind, fields in kinds.items():
        heard = Heard(caller)
        connection.listen(kind, heard)
        connection.send("context.open", context_id=kind, timestamps="none", lead_ms=None, **fields)
        message = texts.get(kind, words) * (1_000 // len(texts.get(kind, words)))
        for _ in range(int(target.scaled(18, 3))):
            connection.send("text.append", context_id=kind, text=message)
        connection.send("context.end", context_id=kind)
        async with asyncio.timeout(target.scaled(120, 60)):
            await heard.done.wait()
    await connection.close()
    if caller.figures.errors:
        raise Broken(f"the attacker's legal contexts met {dict(caller.figures.errors)}")
    return f"{caller.figures.contexts} contexts"


@attack("metrics of 1 000 keys, two fronts", node=prepared_node(_with_keys), settings=TWO_FRONTS)
async def many_keys(target: Target) -> str:
    before = processes_of(target.front_pid)
    for number in range(0, KEYS, 20 if target.short else 1):
        await sent(target, "GET", "/v1/models", key=f"secret-of-{number:04}")
    statuses = await again_at_once(target, 4, lambda: ("GET", "/metrics"), target.scaled(10, 0.5))
    if processes_of(target.front_pid) != before or set(statuses) - {"200", "429", "503"}:
        raise Broken(f"a front was killed, or the answers are {told(statuses)}")
    return told(statuses)


FILED = prepared_node(_with_lexicon_and_quota)


@attack("a voice whose lexicon is null", node=FILED, settings=SLOTS)
async def null_lexicon(target: Target) -> str:
    voice = FOLDERS[target.front_pid] / "voices" / VOICE
    for number, broken in enumerate(("null", "[]", '{"x": null}', "{", "[" * 100_000)):
        (voice / "lexicon.json").write_text(broken)
        os.utime(voice, (number, number))
        await speaks(target)
    (voice / "lexicon.json").unlink()
    return "5 kinds"


LOST = ("connection_lost", "internal", "no answer", "newcomer: connection_lost", "newcomer: no answer")


def _replaced(target: Target, dead: int) -> bool:
    now = processes_of(target.front_pid)
    return "front 1" in now and dead not in now.values()


@attack("a broken lexicon file, then a front dies", node=FILED, settings=TWO_FRONTS, expected=LOST)
async def broken_file(target: Target) -> str:
    """A restart takes what was accepted last."""
    path = lexicon_file(FOLDERS[target.front_pid])
    deaths = 0
    for break_it in (lambda: path.write_text("a: [b"), path.unlink):
        break_it()
        dead = processes_of(target.front_pid)["front 0"]
        os.kill(dead, signal.SIGKILL)
        deaths += 1
        await until(partial(_replaced, target, dead), "a front that died is not replaced")
        async with asyncio.timeout(BACK_S):
            while [await ready(target) for _ in range(5)] != [True] * 5:
                await asyncio.sleep(0.2)
        for _ in range(8):
            await speaks(target)
    _with_lexicon_and_quota(FOLDERS[target.front_pid])
    return f"{deaths} fronts died"


@attack("settings read from a pipe, and a bomb of merges", node=FILED, settings=SLOTS)
async def settings_that_hang(target: Target) -> str:
    """Later SIGHUPs are obeyed, and nothing that a file makes of itself takes memory."""
    path, log = lexicon_file(FOLDERS[target.front_pid]), sys.stderr
    assert isinstance(log, io.StringIO)
    before = target.rss_mib()
    path.unlink()
    os.mkfifo(path)
    os.kill(target.front_pid, signal.SIGHUP)
    await asyncio.sleep(target.scaled(5, 0.5))
    path.unlink()
    path.write_text(BOMB)
    most = before
    for _ in range(int(target.scaled(10, 1))):
        os.kill(target.front_pid, signal.SIGHUP)
        for _ in range(10):
            most = max(most, target.rss_mib())
            await asyncio.sleep(0.05)
    if most > before + 64:
        raise Broken(f"{len(BOMB)} bytes of YAML took {most - before:.0f} MiB")
    read = log.getvalue().count(REREAD)
    path.write_text("nginx: engine y\n")
    for _ in range(int(BACK_S)):
        os.kill(target.front_pid, signal.SIGHUP)
        with contextlib.suppress(Broken, TimeoutError):
            await asyncio.wait_for(until(lambda: log.getvalue().count(REREAD) > read, "no"), 1)
            return f"{len(BOMB)} bytes, at most {most - before:.0f} MiB"
    raise Broken("later SIGHUPs are not obeyed")


@attack("a burst of a key with a quota", node=FILED, settings=SLOTS)
async def quota(target: Target) -> str:
    """One long text may pass, and then the key is told to wait for minutes at most."""
    accepted, waits = 0, [0.0]

    async def one(number: int) -> None:
        nonlocal accepted
        body = speech_body(TEXT if number % 2 else TEXT[:QUOTA])
        status, answer = await sent(target, "POST", "/v1/audio/speech", JSON, body, key="secret-of-the-shop")
        if status == 200:
            accepted += len(TEXT) if number % 2 else QUOTA
        waits.extend(float(found) for found in re.findall(r"in (\d+) s", answer.decode("latin-1"))[:1])

    await asyncio.gather(*map(one, range(16)))
    if accepted > len(TEXT) + QUOTA or max(waits) > LONGEST_WAIT_S:
        raise Broken(f"{accepted} characters were let through, and then a wait of {max(waits):g} s is told")
    return f"{accepted} characters let through"
