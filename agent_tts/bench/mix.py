"""Traces of calls for `agent-tts bench mix` and `bench peers`: those of a file, and a synthetic day."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from agent_tts.bench.scenario import LLM_MS, SEED_BITS, TEXTS, ScenarioCall, burst, texts_of
from agent_tts.config.loading import read_yaml_file
from agent_tts.errors import SettingsError
from agent_tts.protocol.validation import first_complaint

# Conversations that begin in each hour of a day, against the busiest, which is in the morning.
HOURS = (2, 1, 1, 1, 1, 2, 5, 20, 55, 85, 100, 95, 70, 75, 95, 90, 80, 65, 45, 30, 20, 12, 7, 4)
TURNS, TURN_S = (1, 6), (6.0, 12.0)  # of a conversation; from one to the next, however short the day is
UNPACED = {"lead_ms": None}
WAYS: list[dict[str, Any]] = [  # how a conversation asks for its turns, and how many of a hundred do
    {"words_every_ms": LLM_MS},
    {"words_every_ms": LLM_MS, "session": UNPACED},
    {"transport": "http"},
    {"transport": "rtc", "words_every_ms": LLM_MS},
]
SHARES = (70, 18, 10, 2)
CAMPAIGN_HOURS, BATCH_HOUR, BATCH_WORDS = (9, 13, 17), 3, 300  # each is a tenth of the conversations, within a second
FILE = TypeAdapter(Annotated[list[ScenarioCall], Field(min_length=1)])


def calls_of(trace: str, conversations: int, seconds: float, seed: int) -> list[ScenarioCall]:
    """Calls in the order of their times: `day`, which takes so many seconds, or of a file, YAML or JSON lines.

    Raises SettingsError: the file cannot be read, or what is wrong in it.
    """
    if trace == "day":
        return sorted(_day(conversations, seconds / len(HOURS), seed), key=lambda call: call.after_s)
    path = Path(trace)
    given = _lines(path) if path.suffix == ".jsonl" else read_yaml_file(path)
    try:
        calls = FILE.validate_python(given)
    except ValidationError as error:
        complaint = first_complaint(error)
        raise SettingsError(f"{path.name}: {'.'.join(complaint.path)}: {complaint.reason}") from None
    return sorted(calls, key=lambda call: call.after_s)


def _lines(path: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path.name}: {error}") from None


def _day(conversations: int, hour_s: float, seed: int) -> Iterator[ScenarioCall]:
    draw, some = random.Random(seed), conversations // 10
    for call in burst(some, BATCH_HOUR * hour_s, texts_of(BATCH_WORDS), seed):
        yield replace(call, words_every_ms=0.0, session=UNPACED)
    for hour in CAMPAIGN_HOURS:
        yield from burst(some, hour * hour_s, TEXTS, seed + hour)
    for hour in draw.choices(range(len(HOURS)), HOURS, k=conversations):
        at_s, (way,) = (hour + draw.random()) * hour_s, draw.choices(WAYS, SHARES)
        for _ in range(draw.randint(*TURNS)):
            yield ScenarioCall(at_s, draw.choice(TEXTS), seed=draw.getrandbits(SEED_BITS), **way)
            at_s += draw.uniform(*TURN_S)
