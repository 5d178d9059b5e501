"""Progress of `agent-tts say` on stderr."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from agent_tts.events import SAMPLE_RATE
from agent_tts.protocol.context import Done

REFRESH_S = 0.1


class Progress:
    """Shows time to first audio, length and speed: a live line on a terminal, otherwise one line at the end."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        # The line on a terminal, refreshed by hand to avoid a thread.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        # Time of the first text, and seconds from it to the first audio; None before.
        self._text_at: float | None = None
        self._ttfa_s: float | None = None
        self._samples = 0
        # Engine time of the ended contexts, and their samples.
        self._busy_s = 0.0
        self._busy_samples = 0
        self._drawn_at = 0.0

    def __enter__(self) -> Progress:
        if not self._quiet and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if not self._quiet and self._samples:
            self._console.print(self._line())

    def text(self) -> None:
        """Text was sent to the engine."""
        if self._text_at is None:
            self._text_at = time.monotonic()

    def audio(self, pcm: bytes) -> None:
        """Audio arrived."""
        now = time.monotonic()
        if self._ttfa_s is None and self._text_at is not None:
            self._ttfa_s = now - self._text_at
        self._samples += len(pcm) // 2
        if self._live.is_started and now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            self._live.update(self._line(), refresh=True)

    def ended(self, done: Done) -> None:
        """A context has ended."""
        self._busy_s += (done.rtf or 0.0) * done.audio_ms / 1_000
        self._busy_samples = self._samples
        if done.reason == "length" and not self._quiet:
            self._console.print("agent-tts: the node cut a piece of the text: it was too long", style="yellow")

    def _line(self) -> Text:
        parts = [f"{self._samples / SAMPLE_RATE:.2f} s of speech"]
        if self._ttfa_s is not None:
            parts.append(f"first audio after {self._ttfa_s * 1_000:.1f} ms")
        if self._busy_samples:
            parts.append(f"real-time factor {self._busy_s * SAMPLE_RATE / self._busy_samples:.4f}")
        return Text(" · ".join(parts), style="dim")
