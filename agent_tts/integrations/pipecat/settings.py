"""Settings that a pipeline may change while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pipecat.services.settings import TTSSettings
from pipecat.utils.types import NOT_GIVEN, NotGiven


@dataclass
class AgentTTSSettings(TTSSettings):
    """Settings of `AgentTTSService`; they apply from the next turn on, and a setting that is not given stays.

    `model`, `voice` and `language` are Pipecat's; None is the node's choice. `extra` takes the other fields of the
    protocol's session, such as `{"lead_ms": 500, "sampling": {"temperature": 0.7}}`.
    """

    instructions: str | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)  # style, or the voice's description
    seed: int | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)  # None draws one for each turn
    speed: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)  # 0.25 .. 4, 2 speaks twice as fast
    pitch: float | NotGiven = field(default_factory=lambda: NOT_GIVEN)  # 0.5 .. 2, 1 is the voice's own

    def session(self) -> dict[str, Any]:
        """These as the protocol's session; every setting must be given."""
        names = [each.name for each in fields(self) if each.name != "extra"]
        return {name: getattr(self, name) for name in names} | self.extra


def defaults() -> AgentTTSSettings:
    """The node's defaults."""
    return AgentTTSSettings(model=None, voice=None, language=None, instructions=None, seed=None, speed=1.0, pitch=1.0)
