"""When each request passes the stages before its first audio; used only where `telemetry.stages` is on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent_tts.engine.base import StepTimes
from agent_tts.messages import Append, Audio, EngineEvent, Finished, Open, RequestCommand, Stages


@dataclass(slots=True)
class _Passed:
    """What a request has passed; None before."""

    taken: float | None = None
    scheduled: float | None = None


class StageLog:
    """Watches every request from its opening to its first audio, or its end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[int, _Passed] = {}

    def take(self, command: RequestCommand) -> None:
        """The command was taken."""
        if isinstance(command, Open):
            self._waiting[command.id] = _Passed()
        elif isinstance(command, Append) and isinstance(command.content, str):
            request = self._waiting.get(command.id)
            if request is not None and request.taken is None:
                request.taken = self._clock()

    def schedule(self, request_ids: Iterable[int], began: float) -> None:
        """These requests are in a step."""
        for request_id in request_ids:
            request = self._waiting.get(request_id)
            if request is not None and request.taken is not None and request.scheduled is None:
                request.scheduled = began

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
                request = self._waiting.pop(event.id, None)
                if isinstance(event, Audio) and request is not None and request.scheduled is not None:
                    assert request.taken is not None
                    step = times or StepTimes(began, began, began, now, now)
                    told.append(Stages(event.id, request.taken, request.scheduled, *step, now))
            told.append(event)
        return told
