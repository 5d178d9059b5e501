"""Calls to an agent by script, and what came of each step. Callers speak and wait as people do, in real time."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agent_tts.bench import people
from agent_tts.bench.dialogue import AgentScenario, ScriptStep, Thresholds
from agent_tts.bench.lines import PIECE, AgentEvent, AgentLine
from agent_tts.bench.people import RATE, Sound
from agent_tts.bench.quality import Part, Recogniser, Recording, Samples, joined
from agent_tts.bench.statistics import percentile

SPEECH_DBFS, OTHER_DBFS = -20.0, -30.0  # of a caller; of people beside, and of noises
SETTLE_S = 0.5  # of silence before the first words
QUIET_S = 1.0  # without a sound of the agent: it has said what it has to say
ANSWER_S = 20.0  # for an answer to begin
SPEECH_S = 60.0  # for an answer to end, before a step that waits for it
HEAR_OUT_S = 5.0  # for the answer to the last step to end, before the caller leaves
WATCH_S = 1.5  # after what is no interruption; an agent that stopped for it goes on, or answers
STUCK_S = 10.0  # one that has not gone on by then does not
BACK_S = 0.6  # a sound of the agent within so long: it is speaking
EARLY_S = 0.05  # by which the message of an answer may come after its first sound
NO_CALL = "no call"


@dataclass(slots=True)
class CallStep:
    """A step of a script as it was carried out, and what came of it. Its times are those of `AgentLine`."""

    scenario: str
    number: int
    step: ScriptStep
    began: float = 0.0  # the first sample of the caller's sound
    pause: float = 0.0  # the end of its first part: an answer between this and `ended` answers a half turn
    ended: float = 0.0  # the end of its last part
    over: float = 0.0  # when the next step might begin
    talked: bool = True  # whether the agent was speaking
    silenced: bool = False  # whether it was, and did not go on
    found: str = NO_CALL  # or as expected, or early, twice, silenced, unanswered, not speaking
    answer_ms: int | None = None  # from the end of the caller's speech to the first sound of the answer
    silence_ms: int | None = None  # from the caller's first sound to the last of an answer that was interrupted
    marks: dict[str, int] = field(default_factory=dict)  # those of the answer
    recognised: str = ""
    wrong: list[str] = field(default_factory=list)  # what else is not as expected
    words: dict[str, Part] = field(default_factory=dict)  # wrong words of how many, by figure
    speech: dict[str, Recording] = field(default_factory=dict)  # by figure: what the agent says was said, and the sound

    @property
    def passed(self) -> bool:
        return self.found == self.step.expected and not self.wrong

    def document(self) -> dict[str, Any]:
        """All but times and sound."""
        step = {"verb": self.step.verb, "said": self.step.text, "expected": self.step.expected}
        names = ("found", "passed", "answer_ms", "silence_ms", "marks", "recognised", "wrong", "words")
        return {"scenario": self.scenario, "step": self.number, **step, **{name: getattr(self, name) for name in names}}


Voiced = tuple[AgentScenario, list[list[Sound]]]  # a scenario, and the parts of its steps with the pauses between them


def voiced(scenario: AgentScenario, folder: Path) -> Voiced:
    """What its caller says, before the call: to make it takes seconds. `folder` has the recordings.

    Raises:
        ImportError: hibari, of agent-tts[voice], is not installed.
        SettingsError: a recording cannot be read.
    """
    return scenario, [
        _sounds(step, 1_000 * scenario.seed, number, folder) for number, step in enumerate(scenario.turns)
    ]


def _sounds(step: ScriptStep, seed: int, number: int, folder: Path) -> list[Sound]:
    beside = step.verb in ("other", "noise")
    usual = OTHER_DBFS if beside else SPEECH_DBFS
    if step.noise is not None:
        parts = [people.noise(step.noise, step.seconds, seed + number)]
    elif step.recording is not None:
        parts = [people.recorded(folder / step.recording)]
    else:
        parts = [
            people.says(part, seed + 500 * beside) if isinstance(part, str) else np.zeros(round(part * RATE), "f4")
            for part in step.parts
        ]
    return [people.at_level(part, usual if step.dbfs is None else step.dbfs) for part in parts]


async def call(line: AgentLine, wanted: Voiced) -> list[CallStep]:
    """Carry out one scenario on an open line. Raises TimeoutError: the line takes no more."""
    scenario, sounds = wanted
    caller = _Caller(line, scenario)
    await caller.wait(lambda now: False, SETTLE_S)
    done: list[CallStep] = []
    for number, (step, parts) in enumerate(zip(scenario.turns, sounds, strict=True), 1):
        one = CallStep(scenario.name, number, step)
        await caller.carry_out(one, parts, done[-1].over if done else 0.0)
        done.append(one)
    if done[-1].step.expected != "nothing":
        await caller.wait(caller.is_quiet, HEAR_OUT_S)
    if not caller.is_quiet(time.monotonic()):
        line.tell("left")
    judge(done, line)
    return done


class _Caller:
    def __init__(self, line: AgentLine, scenario: AgentScenario) -> None:
        self._line = line
        level = scenario.noise_dbfs
        # What is behind all that is sent, over and over.
        self._behind = (
            np.zeros(PIECE, "f4") if level is None else people.at_level(people.noise("hum", 10, scenario.seed), level)
        )
        # Pieces that were sent, and when the first was due.
        self._sent, self._start = 0, time.monotonic()

    async def carry_out(self, done: CallStep, parts: Sequence[Sound], since: float) -> None:
        line, step = self._line, done.step
        if step.verb == "says":
            await self.wait(self.is_quiet, SPEECH_S)
        else:
            await self.wait(lambda now: now >= since + step.at_s, step.at_s + QUIET_S)
        done.talked = self._speaks(time.monotonic())
        times = [await self._play(sound) for sound in parts]
        (done.began, done.pause), (_, done.ended) = times[0], times[-1]
        if step.expected == "nothing":
            seen = done.ended + WATCH_S
            await self.wait(lambda now: now > seen and (not done.talked or self._speaks(now)), STUCK_S)
            done.silenced = done.talked and not self._speaks(time.monotonic())
        else:
            await self.wait(lambda now: first_sound(line, answers(line, done.ended, now)) is not None, ANSWER_S)
        done.over = time.monotonic()

    def is_quiet(self, now: float) -> bool:
        return not self._line.loud or now - self._line.loud[-1] > QUIET_S

    def _speaks(self, now: float) -> bool:
        return bool(self._line.loud_between(now - BACK_S, now))

    async def wait(self, until: Callable[[float], bool], most_s: float) -> None:
        """Send silence until something is so, for `most_s` at most."""
        end = time.monotonic() + most_s
        while not until(now := time.monotonic()) and now < end:
            await self._send(np.zeros(PIECE, "f4"))

    async def _play(self, sound: Sound) -> tuple[float, float]:
        """Send a sound; returns when its first and its last sample were due."""
        began = self._start + self._sent * PIECE / RATE
        for piece in np.pad(sound, (0, -len(sound) % PIECE)).reshape(-1, PIECE):
            await self._send(piece)
        return began, began + len(sound) / RATE

    async def _send(self, piece: Sound) -> None:
        """Send a piece when it is due."""
        at = self._sent * PIECE
        await asyncio.sleep(self._start + at / RATE - time.monotonic())
        self._sent += 1
        mixed = np.clip(piece + self._behind[(at + np.arange(PIECE)) % len(self._behind)], -1, 1)
        async with asyncio.timeout(STUCK_S):
            await self._line.send((mixed * 32_767).astype(np.int16))


# ---------------------------------------------------------------- what came of it


def answers(line: AgentLine, begin: float, end: float) -> list[AgentEvent]:
    """Answers that began between two times."""
    return [event for event in line.told if event.kind == "answer" and begin <= event.at < end]


def first_sound(line: AgentLine, begun: Sequence[AgentEvent]) -> float | None:
    """When the first of some answers is heard; None if it is not."""
    return next(iter(line.loud_between(begun[0].at - EARLY_S, math.inf)), None) if begun else None


def judge(done: Sequence[CallStep], line: AgentLine) -> None:
    """Find what came of each step until the next began."""
    for one, end in zip(done, [*(each.began for each in done[1:]), math.inf], strict=True):
        _judge(one, line, end)


def _judge(one: CallStep, line: AgentLine, end: float) -> None:
    step, begun = one.step, answers(line, one.ended, end)
    told = [event for event in line.told if one.began <= event.at < end]
    cut = next((event for event in told if event.kind == "interrupted"), None)
    one.recognised = " ".join(event.text.strip() for event in told if event.kind == "transcript")
    answer_at = first_sound(line, begun)
    early = bool(answers(line, one.pause, one.ended))
    if answer_at is not None:
        one.answer_ms = round((max(answer_at, one.ended) - one.ended) * 1_000)
    one.found = "nothing"
    if step.verb != "says" and step.expect is None and not one.talked:
        one.found = "not speaking"
    elif step.expected == "answer":
        one.found = "early" if early else "unanswered" if answer_at is None else "twice" if begun[1:] else "answer"
    elif step.expected == "nothing":
        one.found = "interruption" if cut or early or begun else "silenced" if one.silenced else "nothing"
    elif cut is not None:
        one.found = "interruption"
        sounds = line.loud_between(one.began, begun[0].at - EARLY_S if begun else end)
        one.silence_ms = round((max([one.began, *sounds]) - one.began) * 1_000)
        if answer_at is None:
            one.wrong.append("no answer to the interruption")
    one.wrong += [f"not recognised: {each}" for each in step.text_contains if each not in one.recognised.lower()]
    if step.verb in ("says", "interrupts"):
        one.speech["wer_user"] = Recording(step.text, "en", np.zeros(0, np.int16), RATE)
    if cut is not None and (before := answers(line, 0, cut.at)):
        sound, _ = _sound_of(before[-1], line, cut)
        one.speech["wer_heard"] = Recording(cut.text, "en", sound, RATE)
    if begun:
        one.marks = begun[0].marks
        sound, after = _sound_of(begun[0], line)
        if after is None or after.kind == "answer":  # it was heard to its end
            one.speech["wer_agent"] = Recording(begun[0].text, "en", sound, RATE)


def _sound_of(answer: AgentEvent, line: AgentLine, cut: AgentEvent | None = None) -> tuple[Samples, AgentEvent | None]:
    """What was heard of an answer, and what followed; `cut` ended it, and something was heard until then."""
    later = (event for event in line.told if event.at > answer.at and event.kind != "transcript" and event is not cut)
    after = next(later, None)
    return line.sound(answer.at - EARLY_S, after.at - EARLY_S if after else math.inf), after


def recognise(one: CallStep, recogniser: Recogniser) -> None:
    """Count the wrong words of a step, and drop its sound."""
    for figure, recording in one.speech.items():
        if not recording.text.strip():  # it was cut before its first word
            continue
        heard = joined(recogniser.listen(recording)) if len(recording.samples) else one.recognised
        one.words[figure] = recogniser.errors(recording, heard)["wer"]
    one.speech = {}


def figures(done: Sequence[CallStep]) -> dict[str, float | None]:
    """Those of `Thresholds`; None where nothing was measured."""
    spoken = [one for one in done if one.step.expected != "nothing" and len(one.step.parts) == 1]
    answered = [one.answer_ms for one in spoken]
    found: dict[str, float | None] = {
        "answer_ms_p50": percentile(answered, 50),
        "answer_ms_p95": percentile(answered, 95),
        "silence_ms_p95": percentile([one.silence_ms for one in done], 95),
    }
    for name, expected, wrong in (
        ("false_interruptions", "nothing", ("interruption", "silenced")),
        ("missed_interruptions", "interruption", ("nothing",)),
        ("early_answers", "answer", ("early",)),
    ):
        some = [one.found in wrong for one in done if one.step.expected == expected]
        found[name] = sum(some) if some else None
    for name in ("wer_user", "wer_agent", "wer_heard"):
        wrong_words, words = np.sum([one.words.get(name, (0, 0)) for one in done], axis=0)
        found[name] = round(float(100 * wrong_words / words), 1) if words else None
    found["failed"] = sum(not one.passed for one in done)
    assert found.keys() == Thresholds.model_fields.keys()
    return found
