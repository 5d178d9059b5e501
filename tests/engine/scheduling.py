"""A scheduler for tests: a method for each command."""

from __future__ import annotations

from agent_tts.directives import Directive
from agent_tts.engine.scheduler import Scheduler
from agent_tts.messages import Append, Cancel, Credit, End, Flush, Open
from agent_tts.options import EngineOptions

UNPACED = EngineOptions(lead_ms=None)


class Commanded(Scheduler):
    """Takes each command as a call."""

    def open(
        self,
        request: int,
        options: EngineOptions = UNPACED,
        now: float = 0.0,
        owner: int = 0,
        *,
        text: str | None = None,
        waits: bool = True,
        waited_ms: int = 0,
    ) -> None:
        self.take(Open(request, options, owner, waited_ms, waits), now)
        if text is not None:
            self.append(request, text)

    def append(self, request: int, content: str | Directive) -> None:
        self.take(Append(request, content), 0.0)

    def flush(self, request: int, flush_id: str) -> None:
        self.take(Flush(request, flush_id), 0.0)

    def end(self, request: int) -> None:
        self.take(End(request), 0.0)

    def cancel(self, request: int) -> None:
        self.take(Cancel(request), 0.0)

    def grant_credit(self, request: int, frames: int) -> None:
        self.take(Credit(request, frames), 0.0)
