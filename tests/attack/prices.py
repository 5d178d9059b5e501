"""Work whose price a client chooses: lexicons, dictionaries, forms, files to sign, and a slow or large library."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

from filelock import FileLock

from agent_tts.bench.node import MeasuredNode, processes_of
from agent_tts.bench.statistics import together
from agent_tts.text.entries import Entry, Lexicon
from agent_tts.text.pls import NAMESPACE
from agent_tts.voices.library import StoredVoice, VoiceLibrary
from tests.attack.bodies import (
    BODIES,
    BOUNDARY,
    FOLDERS,
    FORM,
    JSON,
    LIMITS,
    RULES_PATH,
    STORED,
    TEXT,
    VOICE,
    form,
    prepared_node,
    sent,
)
from tests.attack.harness import Broken, Target, attack
from tests.attack.stalls import SLOTS, told
from tests.attack.strangers import site
from tests.certificates import make_signer

AT_ONCE = 4  # sessions of one key
TWO_FRONTS = {**SLOTS, "fronts": 2}
VOICES = 120  # with a lexicon each
SLOW_S = 0.2  # for the folder of voices to answer
# In front of the node's code: what is asked of the folder of voices takes long.
SLOW = f"""
import builtins, io, os, time
def slowly(function):
    def slow(path, *args, **kwargs):
        if isinstance(path, (str, os.PathLike)) and "/voices" in os.fspath(path) and "agent_tts" not in os.fspath(path):
            time.sleep({SLOW_S})
        return function(path, *args, **kwargs)
    return slow
for name in ("stat", "lstat", "listdir", "scandir", "open"):
    setattr(os, name, slowly(getattr(os, name)))
builtins.open = io.open = slowly(io.open)
"""


async def again_at_once(target: Target, count: int, one: Callable[[], object], seconds: float) -> Counter[str]:
    """So many requests at a time, each again when it is answered: `one` makes the arguments of `sent`."""
    statuses: Counter[str] = Counter()
    end = asyncio.get_running_loop().time() + seconds

    async def again() -> None:
        while True:
            arguments: object = one()
            assert isinstance(arguments, tuple)
            status, _ = await sent(target, *arguments)
            statuses[str(status)] += 1
            if status == 500:
                raise Broken(f"{arguments[:2]} is answered by 500")
            if asyncio.get_running_loop().time() >= end:
                return

    await together(again() for _ in range(count))
    return statuses


async def flooded(target: Target, method: str, path: str, kind: str, body: bytes, count: int = AT_ONCE) -> str:
    """One request over and over."""
    return told(await again_at_once(target, count, lambda: (method, path, kind, body), target.scaled(15, 0)))


def variants(word: str, count: int = 128) -> dict[str, dict[str, object]]:
    """Spellings of a word that differ in their capitals alone, each an entry of its own."""
    found: dict[str, dict[str, object]] = {}
    for capitals in itertools.product((False, True), repeat=min(len(word), 8)):
        spelt = "".join(ch.upper() if big else ch for ch, big in zip(word, capitals, strict=False)) + word[8:]
        found[spelt] = {"alias": "x", "match_case": True, "whole_word": False}
        if len(found) == count:
            break
    return found


def speech_body(text: str, **fields: object) -> bytes:
    return json.dumps({"input": text, **fields}, ensure_ascii=False).encode()


@attack("a lexicon of case variants, two fronts", node=STORED, settings=TWO_FRONTS)
async def case_variants(target: Target) -> str:
    """Both fronts are there to the end."""
    before = processes_of(target.front_pid)
    body = speech_body("é" * LIMITS.text_context_chars, lexicon=variants("é" * 30))
    other = speech_body("a" * 4_000, lexicon=variants("a" * 10))
    did = [await flooded(target, "POST", "/v1/audio/speech", JSON, each) for each in (body, other)]
    if processes_of(target.front_pid) != before:
        raise Broken("a front was killed")
    return "; ".join(did)


STORES = {**SLOTS, "dictionaries__limit": 8}


@attack("a million empty lists", node=STORED, settings=STORES)
async def empty_lists(target: Target) -> str:
    lists = b",".join([b"[]"] * 340_000)
    return await flooded(target, "POST", f"{RULES_PATH}/add-from-rules", JSON, b'{"name":"n","rules":[' + lists + b"]}")


@attack("a clip full of beginnings of boundaries", node=STORED, settings=STORES)
async def boundaries(target: Target) -> str:
    file = f"\r\n--{BOUNDARY[:1]}".encode() * 2_000_000
    return await flooded(target, "POST", "/v1/audio/detect", FORM, form(audio_sample=file[:10_400_000]), 2)


@attack("180 000 graphemes of one lexeme", node=STORED, settings=STORES)
async def graphemes(target: Target) -> str:
    words = "".join(f"<grapheme>{n:x}</grapheme>" for n in range(145_000))
    document = f'<lexicon version="1.0" xmlns="{NAMESPACE}" alphabet="ipa" xml:lang="en"><lexeme>{words}'
    file = f"{document}<alias>x</alias></lexeme></lexicon>".encode()
    return await flooded(target, "POST", f"{RULES_PATH}/add-from-file", FORM, form(name="n", file=file), 2)


@attack("unknown dictionaries beside changes, and a lock that is held", node=STORED, settings=STORES)
async def unknown_dictionaries(target: Target) -> str:
    added = BODIES["POST", f"{RULES_PATH}/add-from-rules"]()
    kinds = itertools.cycle((("DELETE", "/pronunciation-dicts/x"), ("POST", f"{RULES_PATH}/add-from-rules", *added)))
    statuses = await again_at_once(target, AT_ONCE, lambda: next(kinds), target.scaled(10, 0))
    with FileLock(FOLDERS[target.front_pid] / "dictionaries" / ".lock"):
        with contextlib.suppress(Broken, TimeoutError):  # they wait for the lock longer than this attacker does
            async with asyncio.timeout(target.scaled(12, 1)):
                statuses += await again_at_once(target, AT_ONCE, lambda: next(kinds), target.scaled(10, 0))
    return told(statuses)


@attack("a voice's lexicon again and again", node=STORED, settings=STORES)
async def voice_lexicon(target: Target) -> str:
    path = "/v1/audio/voices/{name}/lexicon"
    return await flooded(target, "PUT", path.format(name=VOICE), *BODIES["PUT", path]())


def _library(folder: Path) -> Mapping[str, object]:
    library = VoiceLibrary(folder / "voices", limit=200)
    lexicon = Lexicon(Entry(f"{n}é".rjust(30, "é"), alias="é" * 8) for n in range(9_000))
    for number in range(VOICES):
        name = f"voice-{number}"
        library.add(StoredVoice(name=name, kind="designed", prompt="calm"), {})
        library.set_lexicon(name, lexicon)
    return {"voices__limit": 200}


@attack("120 voices with large lexicons, two fronts", node=prepared_node(_library), settings=TWO_FRONTS)
async def large_library(target: Target) -> str:
    before, numbers = processes_of(target.front_pid), itertools.count()

    def one() -> tuple[str, str, str, bytes]:
        voice = None if (number := next(numbers)) % 2 else f"voice-{number % VOICES}"
        return "POST", "/v1/audio/speech", JSON, speech_body("Hello there.", voice=voice)

    statuses = await again_at_once(target, AT_ONCE, one, target.scaled(15, 0))
    if processes_of(target.front_pid) != before:
        raise Broken("a front was killed")
    return told(statuses)


@asynccontextmanager
async def slow_library(settings: Mapping[str, object]) -> AsyncIterator[MeasuredNode]:
    """A node whose folder of voices answers in `SLOW_S`."""
    with site(SLOW) as path, patch.dict("os.environ", PYTHONPATH=path):
        async with STORED(settings) as node:
            yield node


@attack("a folder of voices that answers slowly", node=slow_library, settings=STORES)
async def slow_folder(target: Target) -> str:
    body = speech_body("Hello there.", voice="tone-660")
    return await flooded(target, "POST", "/v1/audio/speech", JSON, body)


def _signer(folder: Path) -> Mapping[str, object]:
    signer = make_signer(folder)
    return {"c2pa__certificate": signer.cert, "c2pa__key": signer.key}


@attack("eight long files to sign", node=prepared_node(_signer), settings=SLOTS | {"limits__sessions_per_key": 16})
async def signed(target: Target) -> str:
    text = TEXT[: int(target.scaled(len(TEXT), 200))]
    return await flooded(target, "POST", "/v1/audio/speech", JSON, speech_body(text, c2pa=True), 8)
