"""How fast voices speak, as it was heard: what is known of one stream makes the times of the next one better. Pure."""

from __future__ import annotations

from collections import OrderedDict

MAX_VOICES = 16
SLOWEST, FASTEST = 3.0, 0.33  # paces beyond these are not a voice's


class Paces:
    """The paces of the voices heard last, each beside the nominal one at speed 1."""

    def __init__(self) -> None:
        # By voice, newest last.
        self._paces: OrderedDict[str | None, float] = OrderedDict()

    def of(self, voice: str | None) -> float:
        """Real time for nominal time; 1 of a voice that was not heard."""
        return self._paces.get(voice, 1.0)

    def learn(self, voice: str | None, pace: float) -> None:
        """A voice was heard; it may forget the one heard longest ago."""
        self._paces[voice] = min(max(pace, FASTEST), SLOWEST)
        self._paces.move_to_end(voice)
        if len(self._paces) > MAX_VOICES:
            self._paces.popitem(last=False)
