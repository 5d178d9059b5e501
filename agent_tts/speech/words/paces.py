"""Measured paces of voices, which improve the estimates for the next utterance. Pure."""

from __future__ import annotations

from collections import OrderedDict

MAX_VOICES = 16
SLOWEST, FASTEST = 3.0, 0.33  # measured paces are clamped to these


class Paces:
    """Paces of the last voices: real time / nominal time at speed 1."""

    def __init__(self) -> None:
        # By voice, most recent last.
        self._paces: OrderedDict[str | None, float] = OrderedDict()

    def of(self, voice: str | None) -> float:
        """Real time / nominal time; 1 for an unknown voice."""
        return self._paces.get(voice, 1.0)

    def learn(self, voice: str | None, pace: float) -> None:
        """Store the pace of a voice. Beyond `MAX_VOICES` the least recent voice is removed."""
        self._paces[voice] = min(max(pace, FASTEST), SLOWEST)
        self._paces.move_to_end(voice)
        if len(self._paces) > MAX_VOICES:
            self._paces.popitem(last=False)
