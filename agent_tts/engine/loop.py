"""Commands in, one step, events out: the loop of an engine process, which a front can also run in its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from agent_tts.config.settings import Settings
from agent_tts.engine.base import Engine, StepTimes
from agent_tts.engine.requests import Policy
from agent_tts.engine.scheduler import Scheduler, Step
from agent_tts.messages import (
    Append,
    Audio,
    EngineCommand,
    EngineEvent,
    EnginePing,
    EnginePong,
    EngineReady,
    Finished,
    Open,
    RequestCommand,
    Stages,
    StepEvent,
    StopEngine,
)


def policy(settings: Settings, slots: int, batch_sizes: tuple[int, ...] = ()) -> Policy:
    return Policy(
        slots=slots,
        batch_sizes=batch_sizes,
        queue=2 * slots if settings.queue is None else settings.queue,
        queue_s=settings.timeouts.queue_s,
        text_idle_s=settings.limits.text_idle_s,
        window_frames=settings.limits.window_frames,
        max_frames=settings.limits.max_frames,
        request_s=settings.limits.context_s,
    )


class EngineLoop:
    """Drives one engine. One thread owns it, calls `submit` and `step`, and sleeps `wait_s` in between."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.monotonic,
        *,
        tells_stages: bool = False,
    ) -> None:
        self._engine = engine
        engine.is_timed = tells_stages
        # None where nobody is told of them.
        self._stages = StageLog(clock) if tells_stages else None
        self._scheduler = scheduler
        self._clock = clock
        # Pings to answer after the next step, which proves that the loop itself runs.
        self._pings: list[int] = []
        # Longest step since the last pong, in seconds.
        self._longest_s = 0.0
        # The step whose events are still to come; empty or one.
        self._in_flight: list[Step] = []
        # When the engine last returned from a step.
        self._returned_at = 0.0
        self.stopped = False

    def ready(self) -> EngineReady:
        policy = self._scheduler.policy
        return EngineReady(self._engine.info, policy.queue, policy.window_frames)

    def submit(self, command: EngineCommand) -> None:
        """Take a command; it has its effect in the next `step`."""
        if isinstance(command, EnginePing):
            self._pings.append(command.nonce)
        elif isinstance(command, StopEngine):
            self.stopped = True
        else:
            self._scheduler.take(command, self._clock())
            if self._stages is not None:
                self._stages.take(command)

    @property
    def load(self) -> tuple[int, int]:
        """Slots in use, and requests that wait for one."""
        return self._scheduler.load

    def step(self) -> list[EngineEvent]:
        """Run the engine's step if one is due, and answer pings. An exception means that the engine is lost."""
        new = self._run_step() if self._due_s() == 0 else []
        if self._pings:
            self._engine.tidy()
        for nonce in self._pings:
            step_ms = round(self._longest_s * 1_000, 3)
            new.append(EnginePong(nonce, *self._scheduler.load, step_ms, *self._engine.take_faults()))
            self._longest_s = 0.0
        self._pings.clear()
        return new

    def wait_s(self) -> float | None:
        """Seconds until `step` has work; None: until a command comes."""
        return 0.0 if self._pings else self._due_s()

    def _due_s(self) -> float | None:
        """Seconds until the engine's next step; None: until a command comes."""
        if self._in_flight:
            return self._engine.next_step_in_s() or 0.0
        now = self._clock()
        due_at = self._scheduler.next_step_at(now)
        return None if due_at is None else max(0.0, due_at - now)

    def _run_step(self) -> list[EngineEvent]:
        now = self._clock()
        begun = self._returned_at if self._in_flight else now
        step = self._scheduler.schedule(now)
        if self._stages is not None:
            self._stages.schedule(step.run, now)
        said: list[StepEvent] = []
        done = [*self._in_flight, step]
        if step.commands or step.requests or self._in_flight:
            said = self._engine.step(step.commands, step.run)
            self._in_flight = [done.pop()] if self._engine.next_step_in_s() is not None else []
        self._returned_at = self._clock()
        step_s = self._returned_at - begun
        self._longest_s = max(self._longest_s, step_s)
        new: list[EngineEvent] = list(self._scheduler.update(said, done, self._returned_at, step_s / max(1, len(done))))
        return new if self._stages is None else self._stages.tell(new, now, self._engine.times)

    def close(self) -> None:
        """Free the engine. Idempotent."""
        self._engine.close()


class StageLog:
    """When each request passes the stages before its first audio; used only where `telemetry.stages` is on.

    It watches a request from its opening to its first audio, or its end.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # When its first text was taken, and when it was in a step: what of it a request has passed.
        self._waiting: dict[int, list[float]] = {}

    def take(self, command: RequestCommand) -> None:
        """The command was taken."""
        if isinstance(command, Open):
            self._waiting[command.id] = []
        elif isinstance(command, Append) and isinstance(command.content, str):
            passed = self._waiting.get(command.id)
            if passed == []:
                passed.append(self._clock())

    def schedule(self, request_ids: Iterable[int], began: float) -> None:
        """These requests are in a step."""
        for request_id in request_ids:
            if len(passed := self._waiting.get(request_id, [])) == 1:
                passed.append(began)

    def tell(self, events: Sequence[EngineEvent], began: float, times: StepTimes | None) -> list[EngineEvent]:
        """The events of a step, and before each request's first audio when it passed which stage.

        Args:
            began: when the step did.
            times: of the frames among `events`, of an engine that knows them. Otherwise the step is one computation.
        """
        now = self._clock()
        told: list[EngineEvent] = []
        for event in events:
            if isinstance(event, Audio | Finished):
                passed = self._waiting.pop(event.id, [])
                if isinstance(event, Audio) and len(passed) == 2:
                    taken, scheduled = passed
                    step = times or StepTimes(began, began, began, now, now)
                    told.append(Stages(event.id, taken, scheduled, *step, now))
            told.append(event)
        return told
