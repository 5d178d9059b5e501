"""The timeline of each turn of a call: sent to the page, counted in the metrics, and one line of the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    ErrorFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    UserBackchannelFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.processors.frame_processor import FrameDirection
from pipecat.processors.frameworks.rtvi.frames import RTVISendTextFrame
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent_tts.integrations.pipecat.words import REQUEST_ID

Tell = Callable[[dict[str, Any]], None]  # sends a message to the page; must not raise

MARKS = ("user_stopped", "turn_end", "transcript", "llm_first_token", "audio_first")
_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0)


class AgentMetrics:
    """Latency, barge-in and outcomes of conversations, without text or identity."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = partial(Histogram, buckets=_SECONDS, registry=registry)
        self.calls = Gauge("agent_tts_agent_calls", "Calls open now.", ["carrier"], registry=registry)
        self.turn = histogram(
            "agent_tts_agent_turn_seconds",
            "From the end of the user's speech, or from the typed text, to a mark of the answer.",
            ["mark"],  # of `MARKS`, but for the first
        )
        self.speech = histogram(
            "agent_tts_agent_speech_seconds", "From the first token of the language model to the first audio."
        )
        self.hold = histogram(
            "agent_tts_agent_hold_seconds",
            "From noticing the user's voice during an answer to the last sound of it that is sent.",
        )
        self.page = histogram(
            "agent_tts_agent_page_seconds",
            "As a page reports it: heard, the first sound of an answer; silent, after an interruption.",
            ["mark"],
        )
        # answered, interrupted, failed
        self.turns = Counter("agent_tts_agent_turns", "Answers ended.", ["outcome"], registry=registry)
        self.early = Counter(
            "agent_tts_agent_early_answers",
            "Answers prepared before the end of the turn.",
            ["outcome"],  # spoken, dropped
            registry=registry,
        )
        self.early_speech = Counter(
            "agent_tts_agent_early_speech_seconds", "Speech made for them by then.", ["outcome"], registry=registry
        )
        self.resumed = Counter(
            "agent_tts_agent_resumed", "Answers that went on after sounds without a word.", registry=registry
        )


@dataclass(slots=True)
class _UserTurn:
    """One answer."""

    number: int
    times: dict[str, float]  # of each of `MARKS` that happened, s of the monotonic clock; user_stopped is among them
    context_id: str | None = None  # of the text-to-speech service
    request_id: str | None = None  # of the engine; the last one of the turn
    written: str = ""  # by the language model
    heard: str = ""  # by the user
    failed: bool = False

    def marks(self) -> dict[str, int | None]:
        """Each mark in milliseconds from the end of the user's speech, or from the typed text."""
        began = self.times["user_stopped"]
        return {name: round((self.times[name] - began) * 1_000) if name in self.times else None for name in MARKS}


class Turns(BaseObserver):
    """Observes the frames of one call, and is told of the progress of its answers by `Playout`."""

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
        self._turn: _UserTurn | None = None
        # Times of the user's last words or text, for the next answer; see `_UserTurn`.
        self._asked: dict[str, float] = {}
        # Whether an answer to a turn that may not be over is being prepared.
        self._is_early = False
        # When the user's voice ended last; None before.
        self._silent_at: float | None = None

    # ------------------------------------------------------------ the pipeline's side

    async def on_push_frame(self, data: FramePushed) -> None:
        """Note a frame's first push. Of a broadcast, only the downstream frame counts, but for the end of the voice.

        That goes upstream to the recogniser, which may have the words before it comes downstream.
        """
        if isinstance(data.frame, VADUserStoppedSpeakingFrame):
            self._silent_at = self._clock() - data.frame.stop_secs
        if data.direction is not FrameDirection.DOWNSTREAM:
            if isinstance(data.frame, ErrorFrame) and self._turn is not None:
                self._turn.failed = True
            return
        now = self._clock()
        match data.frame:
            case TranscriptionFrame(text=text) if text.strip():
                # A later voice may have no words, and an answer may have begun since this one ended.
                self._asked = {"user_stopped": now if self._silent_at is None else self._silent_at, "transcript": now}
            case UserBackchannelFrame():
                self._asked = {}
            case LLMContextFrame(speculation=True):
                self._is_early = True
            case EagerEndOfTurnCancelFrame():
                self._count_early("dropped")
            case LLMContextFrame() | UserStoppedSpeakingFrame():
                self._count_early("spoken")
                if "transcript" in self._asked:
                    self._asked["turn_end"] = now
            case RTVISendTextFrame():
                self._asked = {"user_stopped": now}
            case LLMFullResponseStartFrame():
                self._begin(now)
            case LLMTextFrame(text=text) if self._turn is not None:
                self._turn.times.setdefault("llm_first_token", now)
                self._turn.written += text
            case TTSStartedFrame(context_id=context_id) if self._turn is not None:
                self._turn.context_id = context_id
            case TTSAudioRawFrame(metadata=metadata) if self._turn is not None:
                self._turn.request_id = metadata.get(REQUEST_ID, self._turn.request_id)
            case InterruptionFrame():
                self._count_early("dropped")
                self._interrupted()

    def _count_early(self, outcome: str) -> None:
        if self._is_early:
            self._metrics.early.labels(outcome).inc()
        self._is_early = False

    def _begin(self, now: float) -> None:
        self._end("failed")  # the last answer was not heard to its end
        self.count += 1
        self._turn = _UserTurn(self.count, {"user_stopped": now} | self._asked)
        self._asked = {}

    def _interrupted(self) -> None:
        turn = self._turn
        if turn is None:
            return
        unheard = _after(turn.written, turn.heard)
        self._tell({"kind": "interrupted", "turn": turn.number, "heard": turn.heard.strip(), "unheard": unheard})
        self._end("interrupted")

    @property
    def marks(self) -> dict[str, int]:
        """Those of `MARKS` behind the first that the answer has so far, ms after the user's words."""
        found = {} if self._turn is None else self._turn.marks()
        return {name: ms for name, ms in found.items() if ms is not None and name != "user_stopped"}

    def _end(self, outcome: str) -> None:
        marks = self.marks
        turn, self._turn = self._turn, None
        if turn is None:
            return
        for name, ms in marks.items():
            self._metrics.turn.labels(name).observe(ms / 1_000)
        if {"llm_first_token", "audio_first"} <= marks.keys():
            self._metrics.speech.observe(turn.times["audio_first"] - turn.times["llm_first_token"])
        self._metrics.turns.labels(outcome).inc()
        logger.info(
            "agent: call {} turn {} context {} stream {}: {}; ms after the user: {}",
            self._call_id,
            turn.number,
            turn.context_id,
            turn.request_id,
            outcome,
            ", ".join(f"{name} {ms}" for name, ms in marks.items()) or "nothing",
        )

    # ------------------------------------------------------------ the playout's side

    def sounded(self) -> None:
        """The first audio of an answer leaves."""
        if self._turn is not None and "audio_first" not in self._turn.times:
            self._turn.times["audio_first"] = self._clock()
            self._tell({"kind": "turn", "turn": self._turn.number, "marks": self._turn.marks()})

    def heard(self, text: str) -> None:
        """A word, or a part of one, is spoken now; `text` includes the space before it."""
        if self._turn is not None:
            self._turn.heard += text

    def held(self, rest_s: float) -> None:
        """The user's voice holds the answer; silence follows after `rest_s` seconds."""
        self._metrics.hold.observe(rest_s)

    def resumed(self) -> None:
        """There was no interruption: the answer goes on."""
        self._metrics.resumed.inc()
        if self._turn is not None:
            self._tell({"kind": "resumed", "turn": self._turn.number})

    def finished(self) -> None:
        """All of the answer was heard."""
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
