"""When each request passes the stages before its first audio; used only where `telemetry.stages` is on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent_tts.engine.base import StepTimes
from agent_tts.events import EngineEvent, RequestAudio, RequestFinished, RequestStages


@dataclass(slots=True)
class _Passed:
    """What a request has passed; None before."""

    taken: float | None = None
    scheduled: float | None = None


class Stages:
    """Watches every request from its opening to its first audio, or its end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[int, _Passed] = {}

    def opened(self, request_id: int) -> None:
        """The request was opened."""
        self._waiting[request_id] = _Passed()

    def taken(self, request_id: int) -> None:
        """Text of the request was taken."""
        if (request := self._waiting.get(request_id)) is not None and request.taken is None:
            request.taken = self._clock()

    def scheduled(self, request_ids: Iterable[int], began: float) -> None:
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
            if isinstance(event, RequestAudio | RequestFinished):
                request = self._waiting.pop(event.request_id, None)
                if isinstance(event, RequestAudio) and request is not None and request.scheduled is not None:
                    assert request.taken is not None
                    step = times or StepTimes(began, began, began, now, now)
                    told.append(RequestStages(event.request_id, request.taken, request.scheduled, *step, now))
            told.append(event)
        return told
