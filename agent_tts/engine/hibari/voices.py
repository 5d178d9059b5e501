"""The voices of hibari that are on this machine, and the names that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from agent_tts.engine.espeak.voices import LIKE
from agent_tts.engine_info import Voice

CODES = {True: "en-gb", False: "en-us"}  # by whether a voice is British
NEAR = {"female": "f1", "male": "m3"}  # the variant of espeak-ng that says what is not English


def listed(facts: Mapping[str, Mapping[str, Any]]) -> tuple[Voice, ...]:
    """Given hibari's facts about each voice."""
    people = {"female": "woman", "male": "man"}
    return tuple(
        Voice(name, (CODES[fact["british"]],), f"{fact['accent']} {people[fact['gender']]}, natural")
        for name, fact in facts.items()
    )


def near(fact: Mapping[str, Any]) -> str:
    """The voice of espeak-ng beside a voice."""
    return f"{CODES[fact['british']]}+{NEAR[fact['gender']]}"


def aliases(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Voice names of other engines: women and men in turn, as far as there are any."""
    women = [name for name, fact in facts.items() if fact["gender"] == "female"]
    men = [name for name, fact in facts.items() if fact["gender"] == "male"]
    turns = {"f": cycle(women or men), "m": cycle(men or women)}
    return {name: next(turns["m" if like[0] == "m" else "f"]) for name, like in LIKE.items() if name not in facts}
