"""When each request passes the stages before its first audio; used only where `telemetry.stages` is on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from agent_tts.engine.base import StepTimes
from agent_tts.messages import Append, Audio, EngineEvent, Finished, Open, RequestCommand, Stages


class StageLog:
    """Watches every request from its opening to its first audio, or its end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # When each request was taken, and then scheduled.
        self._passed: dict[int, list[float]] = {}

    def take(self, command: RequestCommand) -> None:
        if isinstance(command, Open):
            self._passed[command.id] = []
        elif isinstance(command, Append) and isinstance(command.content, str) and self._passed.get(command.id) == []:
            self._passed[command.id].append(self._clock())

    def schedule(self, request_ids: Iterable[int], began: float) -> None:
        for request_id in request_ids:
            if len(passed := self._passed.get(request_id, ())) == 1:
                self._passed[request_id] = [*passed, began]

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
                passed = self._passed.pop(event.id, [])
                if isinstance(event, Audio) and len(passed) == 2:
                    step = times or StepTimes(began, began, began, now, now)
                    told.append(Stages(event.id, passed[0], passed[1], *step, now))
            told.append(event)
        return told
