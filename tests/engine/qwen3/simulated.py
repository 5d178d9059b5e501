"""A node's engine in virtual time: the real scheduler, loop and engine over steps that only take their time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agent_tts import messages
from agent_tts.bench.statistics import Player
from agent_tts.config.settings import Checkpoint, Limits, Qwen3, Settings
from agent_tts.engine.loop import EngineLoop, policy
from agent_tts.engine.qwen3 import engine as module
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import BUCKETS, PrefillBudget
from agent_tts.engine.qwen3.row import Row
from agent_tts.engine.qwen3.runner import ModelRunner
from agent_tts.engine.qwen3.served import StepResult
from agent_tts.engine.requests import FRAME_S
from agent_tts.engine.scheduler import BYTES_PER_S, Scheduler
from agent_tts.messages import EngineCommand, StepEvent
from agent_tts.options import EngineOptions, NamedVoice

# A step of so many rows takes so many ms, and one with prompts 1.4 more: an H200 and the model of 1.7B.
STEP_MS = dict(zip(BUCKETS, (2.6, 2.9, 3.1, 3.4, 3.7, 4.2, 4.8, 7.0, 10.5), strict=True))
PROMPTS_MS = 1.4
HOST_MS = 0.7  # of a step, before its launch
# The other Python of a step: of itself, of each row, of a command, of a text that is read; fitted to 1.85 ms for 22
# rows and 7.0 ms for 213 rows that read nothing, and 4.1 ms for 68 rows at 200 requests a second.
STEP_HOST_MS, ROW_MS, COMMAND_MS, READ_MS = 0.5, 0.027, 0.015, 0.06
CODES = np.random.default_rng(0).integers(0, 1_000, (2_000, 16)).astype(np.int16)
PCM = np.full((1_000, 1_920), 1_000, np.int16)
VOICE = EngineOptions(NamedVoice("ryan"), lead_ms=1_000)


class Clock:
    """Virtual time, in seconds."""

    now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Launched:
    """A step in flight, or done."""

    def __init__(self, clock: Clock, rows: int, size: int, done_at: float) -> None:
        self._clock, self._rows, self.size, self._done_at = clock, rows, size, done_at

    def ready(self) -> bool:
        return self._clock.now >= self._done_at

    def result(self) -> StepResult:
        self._clock.now = max(self._clock.now, self._done_at)
        begin = int(1e6 * self._done_at) % 997
        yes = np.ones(self._rows, np.bool_)
        return StepResult(CODES[begin : begin + self._rows], PCM[: self._rows], ~yes, yes)


class Device:
    """Stands in for the graphs of a GPU: steps take their time, and compute nothing."""

    prefill_budget = PrefillBudget(128, cut=True)

    def __init__(self, clock: Clock, hidden_size: int) -> None:
        self._clock = clock
        self._hidden_size = hidden_size
        self._busy_until = 0.0
        # Seconds by which the host is late with the next step.
        self.late_s: Callable[[], float] = lambda: 0.0
        # Begin and end of each step, and its rows.
        self.steps: list[tuple[float, float, int]] = []

    def step(
        self, rows: Sequence[int], parts: Sequence[Any] = (), *, timed: bool = False
    ) -> tuple[Launched | None, list[torch.Tensor]]:
        self._clock.now += HOST_MS / 1_000 + self.late_s()
        size = next((size for size in BUCKETS if size >= len(rows)), 0) if rows else 0
        took_ms = STEP_MS.get(size, 2.0) + PROMPTS_MS * bool(parts)
        began = max(self._clock.now, self._busy_until)
        self._busy_until = began + took_ms / 1_000
        self.steps.append((began, self._busy_until, len(rows)))
        launched = Launched(self._clock, len(rows), size, self._busy_until) if rows else None
        return launched, [torch.zeros(self._hidden_size, dtype=torch.bfloat16) for _ in parts]


class Listener:
    """Who hears a request: a player that starts at its first frame."""

    def __init__(self) -> None:
        # Steps of the node when its text was taken; None before.
        self.steps: int | None = None
        self.first_text_at = 0.0
        # Steps and seconds from its text to its first frame; None before.
        self.waited: tuple[int, float] | None = None
        self.player = Player()
        # When its audio came, and seconds of it.
        self.heard: list[tuple[float, float]] = []


class Node:
    """An engine's loop under a clock that only waits and steps move. Requests end after `max_frames`."""

    def __init__(self, folder: str, slots: int, monkeypatch: pytest.MonkeyPatch, max_frames: int = 60_000) -> None:
        self.clock = clock = Clock()
        # How slow the host is: 1 for that of an H200; 0 takes no time but `HOST_MS`.
        self.host = 0.0
        self._reads = 0  # in this turn
        monkeypatch.setattr(
            module,
            "time",
            SimpleNamespace(perf_counter=self._now, monotonic=lambda: clock.now, sleep=clock.sleep),
        )
        monkeypatch.setattr(ModelRunner, "warm_up", lambda *_: None)
        small: dict[str, Any] = {"dtype": "bfloat16", "codec_dtype": "bfloat16", "max_model_len": 384}  # in memory
        qwen3 = Qwen3(models=(Checkpoint(source=folder),), device="cpu", **small)
        settings = Settings(qwen3=qwen3, slots=slots, limits=Limits(max_frames=max_frames))
        self.engine = Qwen3Engine(settings, slots)
        self._prepare_row, self.engine._prepare = self.engine._prepare, self._prepare
        (model,) = self.engine._models
        self.device = Device(clock, model.config.talker.hidden_size)
        graphs: Any = self.device
        model.runner.graphs, model.runner._budget = graphs, graphs.prefill_budget
        self.engine._overlaps, self.engine.batch_sizes = True, BUCKETS
        self.scheduler = Scheduler(policy(settings, slots, BUCKETS))
        self.loop = EngineLoop(self.engine, self.scheduler, lambda: clock.now)
        self._arrivals: list[tuple[float, int, EngineCommand]] = []
        self._number = itertools.count()
        self.steps = 0
        self.listeners: dict[int, Listener] = {}
        # Called with each request that ends.
        self.on_end: Callable[[int], None] = lambda request_id: None

    def at(self, when: float, command: EngineCommand) -> None:
        heapq.heappush(self._arrivals, (when, next(self._number), command))

    def run(self, until: float) -> None:
        """Go on until that time."""
        while self.clock.now < until:
            wait_s = self.loop.wait_s()
            if wait_s != 0:
                wake_at = until if wait_s is None else self.clock.now + wait_s
                self.clock.now = max(self.clock.now, min([wake_at, *(when for when, _, _ in self._arrivals[:1])]))
            commands, self._reads = 0, 0
            while self._arrivals and self._arrivals[0][0] <= self.clock.now:
                when, _, command = heapq.heappop(self._arrivals)
                self.loop.submit(command)
                commands += 1
                if isinstance(command, messages.Append):
                    listener = self.listeners[command.id]
                    if listener.steps is None:
                        listener.steps, listener.first_text_at = self.steps, when
            due, steps = self.loop.wait_s() == 0, len(self.device.steps)
            new = self.loop.step()
            if due:
                rows = self.device.steps[-1][2] if len(self.device.steps) > steps else 0
                took_ms = STEP_HOST_MS + ROW_MS * rows + COMMAND_MS * commands + READ_MS * self._reads
                self.clock.now += self.host * took_ms / 1_000
                self._reads = 0
            for event in new:
                if isinstance(event, messages.Audio):
                    self._hear(self.listeners[event.id], event)
                elif isinstance(event, messages.Finished):
                    assert event.code is None, event
                    self.on_end(event.id)
            self.steps += due

    def _now(self) -> float:
        """The time within a step, which has read some rows' texts."""
        return self.clock.now + self._reads * READ_MS * self.host / 1_000

    def _prepare(self, row: Row) -> list[StepEvent]:
        self._reads += 1
        return self._prepare_row(row)

    def _hear(self, listener: Listener, audio: messages.Audio) -> None:
        now, seconds = self.clock.now, len(audio.payload) / BYTES_PER_S
        self.at(now, messages.Credit(audio.id, round(seconds / FRAME_S)))
        if listener.waited is None:
            assert listener.steps is not None
            listener.waited = self.steps + 1 - listener.steps, now - listener.first_text_at
        listener.player.take(now, seconds)
        listener.heard.append((now, seconds))

    def ask(
        self, request_id: int, when: float, pieces: Sequence[str], every_s: float, options: EngineOptions = VOICE
    ) -> Listener:
        """Open a request; its text comes from 10 ms later on."""
        listener = self.listeners[request_id] = Listener()
        self.at(when, messages.Open(request_id, options, request_id))
        for number, piece in enumerate(pieces):
            self.at(when + 0.010 + number * every_s, messages.Append(request_id, piece))
        self.at(when + 0.010 + len(pieces) * every_s, messages.End(request_id))
        return listener
