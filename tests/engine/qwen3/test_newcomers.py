"""How many steps a newcomer waits for its first frame: the scheduler, the loop and the engine over simulated steps.

Text that comes while a step is in flight is read by the next step, which launches the row's first frame; the step after
that hands it out. So a row whose prompt is in the cache waits for `STEPS`, however many others speak, and in however
many pieces its words come. A model whose first frame is silence takes one more.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agent_tts import events
from agent_tts.config.settings import Checkpoint, Qwen3, Settings
from agent_tts.engine.loop import EngineLoop, policy
from agent_tts.engine.qwen3 import engine as module
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import BUCKETS, PrefillBudget, StepResult
from agent_tts.engine.scheduler import Scheduler
from agent_tts.events import EngineCommand, NamedVoice, SpeechOptions
from tests.model.conftest import Checkpoint as Checkpoints
from tests.model.conftest import checkpoint

__all__ = ["checkpoint"]  # a fixture

STEPS = 2
# A step of so many rows takes so many ms, and one with prompts 1.4 more: an H200 and the model of 1.7B.
STEP_MS = dict(zip(BUCKETS, (3.3, 3.8, 4.0, 4.2, 4.6, 5.3, 5.8, 8.0, 12.0), strict=True))
PROMPTS_MS = 1.4
HOST_MS = 1.0  # of a step, before its launch
VOICE = SpeechOptions("ryan", lead_ms=1_000, resolved=NamedVoice("ryan"))


class Clock:
    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Launched:
    def __init__(self, clock: Clock, rows: int, size: int, done_at: float) -> None:
        self._clock, self._rows, self.size, self._done_at = clock, rows, size, done_at

    def ready(self) -> bool:
        return self._clock.now >= self._done_at

    def result(self) -> StepResult:
        self._clock.now = max(self._clock.now, self._done_at)
        codes = np.random.default_rng(int(1e6 * self._done_at)).integers(0, 1_000, (self._rows, 16))
        pcm, yes = np.full((self._rows, 1_920), 1_000, np.int16), np.ones(self._rows, np.bool_)
        return StepResult(codes.astype(np.int16), pcm, ~yes, yes)


class Device:
    """Stands in for the graphs of a GPU: steps take their time, and compute nothing."""

    prefill_budget = PrefillBudget(128, cut=True)
    wanted: Sequence[Any] = ()

    def __init__(self, clock: Clock, hidden_size: int) -> None:
        self._clock = clock
        self._hidden_size = hidden_size
        self._busy_until = 0.0

    def step(
        self, rows: Sequence[int], parts: Sequence[Any] = (), *, timed: bool = False
    ) -> tuple[Launched | None, list[torch.Tensor]]:
        self._clock.now += HOST_MS / 1_000
        size = next((size for size in BUCKETS if size >= len(rows)), 0) if rows else 0
        took_ms = STEP_MS.get(size, 2.0) + PROMPTS_MS * bool(parts)
        self._busy_until = max(self._clock.now, self._busy_until) + took_ms / 1_000
        launched = Launched(self._clock, len(rows), size, self._busy_until) if rows else None
        return launched, [torch.zeros(self._hidden_size) for _ in parts]


class Node:
    """An engine's loop under a clock that only waits and steps move."""

    def __init__(self, folder: str, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock = Clock()
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now, sleep=clock.sleep))
        qwen3 = Qwen3(models=(Checkpoint(source=folder),), device="cpu", max_model_len=256)
        settings = Settings(qwen3=qwen3, slots=slots)
        self.engine = Qwen3Engine(settings, slots)
        (model,) = self.engine._models
        device: Any = Device(clock, model.config.talker.hidden_size)
        model.runner._graphs, model.runner._budget = device, device.prefill_budget
        self.engine._overlaps, self.engine.batch_sizes = True, BUCKETS
        self.scheduler = Scheduler(policy(settings, slots, BUCKETS))
        self.loop = EngineLoop(self.engine, self.scheduler, lambda: clock.now)
        self._arrivals: list[tuple[float, int, EngineCommand]] = []
        self._number = itertools.count()
        self.steps = 0
        # Of each request: the steps and the time of its first text, and how many and how long its first frame took.
        self._text_at: dict[int, tuple[int, float]] = {}
        self.waited: dict[int, tuple[int, float]] = {}

    def at(self, when: float, command: EngineCommand) -> None:
        heapq.heappush(self._arrivals, (when, next(self._number), command))

    def run(self, until: float) -> None:
        while self.clock.now < until:
            wait_s = self.loop.wait_s()
            if wait_s != 0:
                wake_at = until if wait_s is None else self.clock.now + wait_s
                self.clock.now = max(self.clock.now, min([wake_at, *(when for when, _, _ in self._arrivals[:1])]))
            while self._arrivals and self._arrivals[0][0] <= self.clock.now:
                command = heapq.heappop(self._arrivals)[2]
                self.loop.submit(command)
                if isinstance(command, events.AppendText):
                    self._text_at.setdefault(command.request_id, (self.steps, self.clock.now))
            due = self.loop.wait_s() == 0
            for event in self.loop.step():
                if isinstance(event, events.RequestAudio):
                    self.at(self.clock.now, events.GrantCredit(event.request_id, 1))
                    if event.request_id not in self.waited:
                        steps, when = self._text_at[event.request_id]
                        self.waited[event.request_id] = self.steps + 1 - steps, self.clock.now - when
                elif isinstance(event, events.RequestFinished):
                    assert event.code is None, event
            self.steps += due

    def ask(self, request_id: int, when: float, pieces: Sequence[str], every_s: float) -> None:
        """Open a request; its text comes from 10 ms later on."""
        self.at(when, events.OpenRequest(request_id, VOICE, request_id))
        for number, piece in enumerate(pieces):
            self.at(when + 0.010 + number * every_s, events.AppendText(request_id, piece))
        self.at(when + 0.010 + len(pieces) * every_s, events.EndText(request_id))


@pytest.mark.parametrize(
    ("pieces", "every_s"),
    [
        (["Your ", "order ", "left ", "our ", "warehouse ", "this ", "morning. "], 0.010),
        (list("Unbelievably large houses stand there."), 0.0),
    ],
    ids=["words", "characters at once"],
)
def test_a_newcomer_with_text_waits_for_two_steps_while_others_speak(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch, pieces: list[str], every_s: float
) -> None:
    """100 a second. Read one piece a step, the characters of the first word would take as many steps."""
    node = Node(str(checkpoint("custom_voice")), 64, monkeypatch)
    draw = random.Random(0)
    node.ask(0, 0.0, ["The first computes the prompt of the voice. "], 0.0)
    when = 0.1
    for request_id in range(1, 61):
        when += draw.expovariate(100)
        node.ask(request_id, when, pieces, every_s)
    node.run(1.2)
    node.engine.close()
    assert len(node.waited) == 61
    steps = [count for request_id, (count, _) in node.waited.items() if request_id]
    assert max(steps) <= STEPS + 1  # one more where the text came within the host's part of a step
    assert sum(count <= STEPS for count in steps) > 0.9 * len(steps)
