"""Scripts of callers: the YAML of `agent-tts bench agent`, its built-in sets, and the answers of a scripted LLM."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent_tts.bench.people import Noise
from agent_tts.config.loading import read_yaml_file
from agent_tts.errors import SettingsError
from agent_tts.protocol.validation import first_complaint

FOLDER = Path(__file__).parent
SHIPPED, SETS = FOLDER / "agent.yaml", FOLDER / "agent_sets.yaml"
LIKE = 0.5  # of a text that is recognised as that of a step, in `difflib`'s measure

Expected = Literal["answer", "interruption", "nothing"]
Verb = Literal["says", "interrupts", "backchannel", "other", "noise"]
VERBS: tuple[Verb, ...] = get_args(Verb)


class Script(BaseModel):
    """An object of the file. What is unknown is refused: it would not be measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptStep(Script):
    """What a caller does, and what the agent is to do. One of the verbs is given."""

    says: str | list[str | Annotated[float, Field(gt=0, le=10)]] | None = None  # when it is quiet; numbers: pauses, s
    interrupts: str | None = None  # this and the others: while the agent speaks
    backchannel: str | None = None
    other: str | None = None  # another person says it, beside the caller
    noise: Noise | None = None
    at_s: float = Field(1.5, ge=0, le=60)  # after the first sound of the answer, and the end of the step before
    seconds: float = Field(0.5, gt=0, le=10)  # of a noise
    dbfs: float | None = Field(None, ge=-80, le=0)  # of the loudest half-second; default: as of speech, or of others
    recording: str | None = None  # a file with these words, beside the script or in --recordings
    answer: str | None = None  # of the scripted LLM
    expect: Expected | None = None  # default: by the verb
    text_contains: list[str] = []  # in what the agent recognised, in lower case

    @model_validator(mode="after")
    def _has_one_verb(self) -> ScriptStep:
        if sum(getattr(self, verb) is not None for verb in VERBS) != 1:
            raise ValueError(f"give one of {', '.join(VERBS)}")
        return self

    @property
    def verb(self) -> Verb:
        return next(verb for verb in VERBS if getattr(self, verb) is not None)

    @property
    def parts(self) -> list[str | float]:
        """Words and pauses."""
        given = getattr(self, self.verb)
        return given if isinstance(given, list) else [given]

    @property
    def text(self) -> str:
        return " ".join(part for part in self.parts if isinstance(part, str))

    @property
    def expected(self) -> Expected:
        by_verb: dict[Verb, Expected] = {"says": "answer", "interrupts": "interruption"}
        return self.expect or by_verb.get(self.verb, "nothing")


class AgentScenario(Script):
    """One call."""

    name: str
    seed: int = 0  # of the caller's voice and the noises
    noise_dbfs: float | None = Field(None, ge=-80, le=0)  # of a hum behind everything
    turns: list[ScriptStep] = Field(min_length=1)


class Thresholds(Script):
    """The most of each figure; a description is its title."""

    answer_ms_p50: float | None = Field(None, description="end of speech without a pause to the answer, ms, p50")
    answer_ms_p95: float | None = Field(None, description="the same, p95")
    silence_ms_p95: float | None = Field(None, description="first sound of an interruption to silence, ms, p95")
    false_interruptions: float | None = Field(None, description="interrupted by what is none")
    missed_interruptions: float | None = Field(None, description="interruptions that were missed")
    early_answers: float | None = Field(None, description="half turns that were answered")
    wer_user: float | None = Field(None, description="words of users not recognised, %")
    wer_agent: float | None = Field(None, description="words of answers not understood, %")
    wer_heard: float | None = Field(None, description="words that the agent believes were heard and were not, %")
    failed: float | None = Field(None, description="steps not as expected")


class AgentScript(Script):
    """A file of scenarios."""

    scenarios: list[AgentScenario] = Field(min_length=1)
    thresholds: Thresholds = Thresholds()
    settings: dict[str, Any] = {}  # of a node that is started
    answer: str = "All right."  # of the scripted LLM to what no step has an answer for

    def answer_to(self, said: str) -> str:
        """What the scripted LLM answers: to the step whose words are most like these."""
        steps = (step for scenario in self.scenarios for step in scenario.turns)
        like = [(_likeness(step.text, said), step.answer) for step in steps if step.answer is not None]
        best, answer = max(like, default=(0.0, self.answer))
        return answer if best >= LIKE else self.answer


def _likeness(one: str, other: str) -> float:
    words: list[list[str]] = [re.findall(r"\w+", text.lower()) for text in (one, other)]
    return difflib.SequenceMatcher(a=words[0], b=words[1]).ratio()


def script_of(wanted: str) -> AgentScript:
    """A file, or a set that is built in. Raises SettingsError: there is no such file, or what is wrong in it."""
    sets, path = read_yaml_file(SETS), Path(wanted)
    if wanted == "shipped":
        given = read_yaml_file(SHIPPED)
    elif wanted in (names := [*sets["sets"], "table"]):
        made = [scenario for name in sets["sets"] if wanted in (name, "table") for scenario in _calls(name, sets)]
        given = {**sets["common"], "scenarios": made}
    elif path.is_file():
        given = read_yaml_file(path)
    else:
        raise SettingsError(f"{wanted}: is no file; built-in sets are shipped, {', '.join(names)}")
    try:
        return AgentScript.model_validate(given)
    except ValidationError as error:
        complaint = first_complaint(error)
        raise SettingsError(f"{path.name}: {'.'.join(complaint.path)}: {complaint.reason}") from None


def _calls(name: str, sets: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Calls of a set: `count` steps, `a_call` in each call, whose kinds and texts come in turn and whose rest is drawn.

    Each begins with the same opening if the steps need an answer to talk over.
    """
    wanted, draw = sets["sets"][name], random.Random(name)
    opening = [{"says": wanted["opening"], "expect": "answer"}] if "opening" in wanted else []
    kinds, steps = wanted["steps"], []
    for number in range(wanted["count"]):
        turn, kind = divmod(number, len(kinds))
        step = {
            key: value["each"][turn % len(value["each"])] if isinstance(value, dict) else value
            for key, value in kinds[kind].items()
        }
        steps.append(step | ({"at_s": round(draw.uniform(*wanted["at_s"]), 2)} if "at_s" in wanted else {}))
    for call, first in enumerate(range(0, len(steps), wanted["a_call"]), 1):
        yield {"name": f"{name} {call}", "seed": call, "turns": [*opening, *steps[first : first + wanted["a_call"]]]}
