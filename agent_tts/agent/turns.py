"""The timeline of each turn of a call: sent to the page, counted in the metrics, and one line of the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.processors.frame_processor import FrameDirection
from pipecat.processors.frameworks.rtvi.frames import RTVISendTextFrame

from agent_tts.agent.metrics import AgentMetrics
from agent_tts.integrations.pipecat.words import REQUEST_ID

Tell = Callable[[dict[str, Any]], None]  # sends a message to the page; must not raise


@dataclass(slots=True)
class _Turn:
    """One answer. Times are seconds of the monotonic clock; None for what did not happen."""

    number: int
    user_stopped: float  # the end of the user's speech, or the typed text
    turn_end: float | None = None
    transcript: float | None = None
    llm_first_token: float | None = None
    audio_first: float | None = None
    context_id: str | None = None  # of the text-to-speech service
    request_id: str | None = None  # of the engine; the last one of the turn
    written: str = ""  # by the language model
    heard: str = ""  # by the user
    failed: bool = False

    def marks(self) -> dict[str, int | None]:
        """Each mark in milliseconds from the end of the user's speech."""
        times = {
            "turn_end": self.turn_end,
            "transcript": self.transcript,
            "llm_first_token": self.llm_first_token,
            "audio_first": self.audio_first,
        }
        return {"user_stopped": 0} | {name: self._ms(at) for name, at in times.items()}

    def _ms(self, at: float | None) -> int | None:
        return None if at is None else round((at - self.user_stopped) * 1_000)


class Turns(BaseObserver):
    """Observes the frames of one call. A `PlayoutListener`.

    Args:
        call_id: names the call in the log.
    """

    def __init__(
        self, call_id: str, metrics: AgentMetrics, tell: Tell, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(observe_every_push=False)
        self._call_id = call_id
        self._metrics = metrics
        self._tell = tell
        self._clock = clock
        # Answers begun.
        self.count = 0
        # The answer that is written or heard now; None between answers.
        self._turn: _Turn | None = None
        # Marks of the user's last speech or text; see `_Turn`.
        self._user_stopped: float | None = None
        self._turn_end: float | None = None
        self._transcript: float | None = None

    # ------------------------------------------------------------ the pipeline's side

    async def on_push_frame(self, data: FramePushed) -> None:
        """Note a frame's first push. Of a broadcast, only the downstream frame counts."""
        if data.direction is not FrameDirection.DOWNSTREAM:
            if isinstance(data.frame, ErrorFrame) and self._turn is not None:
                self._turn.failed = True
            return
        now = self._clock()
        match data.frame:
            case VADUserStoppedSpeakingFrame(stop_secs=stop_s):
                self._user_stopped, self._turn_end, self._transcript = now - stop_s, None, None
            case TranscriptionFrame(text=text) if text.strip():
                self._transcript = now
            case LLMContextFrame() if self._transcript is not None:
                self._turn_end = now
            case RTVISendTextFrame():
                self._user_stopped, self._turn_end, self._transcript = now, None, None
            case LLMFullResponseStartFrame():
                self._begin(now)
            case LLMTextFrame(text=text) if self._turn is not None:
                if self._turn.llm_first_token is None:
                    self._turn.llm_first_token = now
                self._turn.written += text
            case TTSStartedFrame(context_id=context_id) if self._turn is not None:
                self._turn.context_id = context_id
            case TTSAudioRawFrame(metadata=metadata) if self._turn is not None:
                self._turn.request_id = metadata.get(REQUEST_ID, self._turn.request_id)
            case InterruptionFrame():
                self._interrupted()
            case _:
                pass

    def _begin(self, now: float) -> None:
        self._end("failed")  # the last answer was not heard to its end
        self.count += 1
        stopped = self._user_stopped if self._user_stopped is not None else now
        self._turn = _Turn(self.count, stopped, self._turn_end, self._transcript)
        self._user_stopped = self._turn_end = self._transcript = None

    def _interrupted(self) -> None:
        turn = self._turn
        if turn is None:
            return
        unheard = _after(turn.written, turn.heard)
        self._tell({"kind": "interrupted", "turn": turn.number, "heard": turn.heard.strip(), "unheard": unheard})
        self._end("interrupted")

    def _end(self, outcome: str) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        marks = turn.marks()
        for name, ms in marks.items():
            if name != "user_stopped" and ms is not None:
                self._metrics.turn.labels(name).observe(max(0.0, ms / 1_000))
        if turn.llm_first_token is not None and turn.audio_first is not None:
            self._metrics.speech.observe(turn.audio_first - turn.llm_first_token)
        self._metrics.turns.labels(outcome).inc()
        told = ", ".join(f"{name} {ms}" for name, ms in marks.items() if ms is not None and name != "user_stopped")
        logger.info(
            "agent: call {} turn {} context {} stream {}: {}; ms after the user: {}",
            self._call_id,
            turn.number,
            turn.context_id,
            turn.request_id,
            outcome,
            told or "nothing",
        )

    # ------------------------------------------------------------ the playout's side

    def sounded(self) -> None:
        if self._turn is not None and self._turn.audio_first is None:
            self._turn.audio_first = self._clock()
            self._tell({"kind": "turn", "turn": self._turn.number, "marks": self._turn.marks()})

    def heard(self, text: str) -> None:
        if self._turn is not None:
            self._turn.heard += text

    def held(self, rest_s: float) -> None:
        self._metrics.hold.observe(rest_s)

    def resumed(self) -> None:
        self._metrics.resumed.inc()
        if self._turn is not None:
            self._tell({"kind": "resumed", "turn": self._turn.number})

    def finished(self) -> None:
        self._end("failed" if self._turn is not None and self._turn.failed else "answered")

    # ------------------------------------------------------------ the page's side

    def page(self, mark: str, ms: object) -> None:
        """Count a measurement of the page: `heard` or `silent`, in milliseconds. Invalid values are ignored."""
        if mark in ("heard", "silent") and isinstance(ms, int | float) and 0 <= ms < 60_000:
            self._metrics.page.labels(mark).observe(ms / 1_000)


def _after(written: str, heard: str) -> str:
    """The rest of `written` after `heard`; only characters that are not spaces count."""
    left = sum(not character.isspace() for character in heard)
    for at, character in enumerate(written):
        if left == 0:
            return written[at:].strip()
        left -= not character.isspace()
    return ""
