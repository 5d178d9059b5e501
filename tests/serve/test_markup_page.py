"""The tables of web/docs/markup.md are what the reader and the engines do."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_tts.directives import Directive, Language, Pause, Prosody, Say, Style
from agent_tts.engine import tone
from agent_tts.engine.espeak import engine as espeak
from agent_tts.engine.qwen3.served import ServedModel
from agent_tts.text.directives import ABILITIES
from agent_tts.text.markup.reader import Item, MarkTag, MarkupReader
from tests.support import running_node

PAGE = Path("web/docs/markup.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head; code is unquoted."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [[cell.strip("`").replace(r"\|", "|") for cell in row] for row in cells]


FORMS = rows("What is understood")
ENGINES = ("qwen3", "espeak", "tone")
# What is done with each ability by engine: performed, approximated or removed.
DONE = {row[0]: dict(zip(ENGINES, row[1:], strict=True)) for row in rows("What is done")}


def read(pieces: list[str]) -> list[Item]:
    reader = MarkupReader()
    return [item for piece in pieces for item in reader.read(piece)] + reader.end()


def clean(items: list[Item]) -> str:
    return "".join(item if isinstance(item, str) else item.text for item in items if isinstance(item, str | Say))


def ability(item: Directive | MarkTag) -> str:
    """The first column of the page's first table."""
    match item:
        case Pause():
            return "pause"
        case Style():
            return "style"
        case Language():
            return "language"
        case MarkTag():
            return "mark"
        case Say(ipa=ipa):
            return "alias" if ipa is None else "ipa"
        case Prosody(speed=speed, volume=volume):
            return "speed" if speed != 1 else "volume" if volume != 1 else "pitch"


@pytest.mark.parametrize(("origin", "written", "heard", "asked"), FORMS, ids=[row[1] for row in FORMS])
def test_what_is_understood(origin: str, written: str, heard: str, asked: str) -> None:
    items = read([written])
    assert clean(items) == heard
    first = next((item for item in items if not isinstance(item, str)), None)
    assert (ability(first) if first is not None else "none") == asked
    assert clean(read(list(written))) == heard


# A model of named voices that was trained on instructions.
_LARGE: Any = SimpleNamespace(kind="named", instructed=True)
PERFORMS = {"qwen3": vars(ServedModel)["abilities"].fget(_LARGE), "espeak": espeak.PERFORMS, "tone": tone.PERFORMS}


@pytest.mark.parametrize(("engine", "performs"), PERFORMS.items())
def test_what_is_performed(engine: str, performs: tuple[str, ...]) -> None:
    assert {name for name in ABILITIES if DONE[name][engine] == "performed"} == set(performs)
    assert {name for name in DONE if DONE[name][engine] == "approximated"} == {"ipa"} - set(performs)
    # What the front does for every engine.
    assert [DONE[name][engine] for name in ("alias", "mark", "none")] == ["performed", "performed", "removed"]


@pytest.mark.node
@pytest.mark.parametrize("engine", ["espeak", "tone"])
async def test_what_is_heard(engine: str) -> None:
    """What is removed leaves the same audio, to the sample; what is performed does not."""
    forms = [row for row in FORMS if row[0] != "text"]
    async with running_node(engine=engine) as node, node.http(trust_env=False) as client:

        async def spoken(text: str) -> bytes:
            body = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "pcm"}
            answer = await client.post("/v1/audio/speech", json=body)
            assert answer.status_code == 200
            return answer.content

        texts = list({text for _, written, heard, _ in forms for text in (written, heard)})
        audio = dict(zip(texts, await asyncio.gather(*map(spoken, texts)), strict=True))
    for _, written, heard, asked in forms:
        before, after = audio[heard], audio[written]
        only_ipa = asked == "ipa" and not heard.isascii()  # said in letters that sound like it
        changes = only_ipa or (asked != "mark" and DONE[asked][engine] == "performed")
        assert (before != after) == changes, written
        if asked == "pause":
            assert len(after) > len(before), written
