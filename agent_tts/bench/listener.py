"""What a call hears of its speech."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from agent_tts.bench.scenario import CallSample
from agent_tts.bench.statistics import Player
from agent_tts.events import SAMPLE_RATE

BYTES_PER_S = 2 * SAMPLE_RATE
LAST = "last"  # of the ping that is sent when a call leaves


class CallListener:
    """Listens to one call, and fills in its sample.

    Args:
        window: audio that comes between these times is counted as measured.
    """

    def __init__(self, sample: CallSample, player_delay_ms: float, window: tuple[float, float]) -> None:
        self.sample = sample
        self._window = window
        self._player = Player(player_delay_ms / 1_000)
        # Set when speech has begun, or will not.
        self.begun = asyncio.Event()
        # Set when nothing follows.
        self.over = asyncio.Event()
        # Set by the answer to the last ping.
        self.answered = asyncio.Event()
        # Whether the call has left; a lost connection is no error then.
        self.gone = False

    def heard(self, now: float, size: int) -> None:
        """Audio of `size` bytes came."""
        sample, seconds = self.sample, size / BYTES_PER_S
        if sample.first_audio_at is None:
            sample.first_audio_at, sample.started = now, True
            self.begun.set()
        sample.audio_s += seconds
        if self._window[0] <= now < self._window[1]:
            sample.measured_audio_s += seconds
        self._player.take(now, seconds)

    def told(self, now: float, message: dict[str, Any]) -> None:
        """A message about the context came."""
        if self.gone:
            return
        if message["type"] == "error":
            self.sample.error = message["code"]
        elif message["type"] == "context.done":
            self.sample.reason = message["reason"]
        if message["type"] in ("error", "context.done"):
            self.begun.set()
            self.over.set()

    def saw(self, message: dict[str, Any]) -> None:
        """Any message came."""
        match message["type"]:
            case "context.started":
                self.sample.started = True
            case "context.done":
                self.sample.ends += 1
            case "pong" if message["t"] == LAST:
                self.answered.set()

    def leave(self, keep_margins: bool) -> None:
        """The call has ended, or was given up."""
        self.gone = True
        self.sample.ended_at = time.monotonic()
        self.sample.gap_times, self.sample.gaps_s = self._player.gap_times, self._player.gaps_s
        if keep_margins:
            self.sample.margins_ms = [round(margin * 1_000, 3) for margin in self._player.margins]
