"""When the user's turn ends: by the turn detector, the words, what the agent had asked, and silence."""

from __future__ import annotations

import asyncio
import time

from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer
from pipecat.frames.frames import (
    Frame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.turns.types import ProcessFrameResult
from pipecat.turns.user_stop import TurnAnalyzerUserTurnStopStrategy

from agent_tts.agent.one_message import OneMessageContext
from agent_tts.agent.stt import RecognisingFrame
from agent_tts.agent.wording import asks, is_half
from agent_tts.config.settings import Agent

ANSWER_S = 1.0  # of a turn, after it was noticed, that answers a question: nothing follows it


class TurnEnd(TurnAnalyzerUserTurnStopStrategy):
    """Ends a turn when all of it is recognised: at once if melody and words are whole, and after a short answer.

    Otherwise it ends after `agent.turn_silence_s`, without words after `agent.resume_after_s`, or at once if it
    was a listener's. A recogniser that does not tell its progress by `RecognisingFrame` is not waited for.

    Args:
        context: the conversation, for what the agent had asked.
    """

    def __init__(self, turn_analyzer: BaseTurnAnalyzer, context: OneMessageContext, agent: Agent) -> None:
        super().__init__(turn_analyzer=turn_analyzer)
        self._context, self._agent = context, agent
        # The words of this turn, and whether there were words of a listener, which are none of it.
        self._words, self._listens = "", False
        # Whether the turn detector hears an end where the voice ended last.
        self._is_whole = False
        # When the turn was noticed, and when the voice ended; None while the user speaks.
        self._began_at = 0.0
        self._silent_at: float | None = 0.0
        # Segments that are not recognised yet.
        self._segments = 0
        # Ends the turn. None while the user speaks, and while something is not recognised.
        self._timer: asyncio.Task[None] | None = None

    async def handle_user_turn_started(self) -> None:
        await super().handle_user_turn_started()
        self._began_at = time.monotonic()
        await self._forget()

    async def handle_user_turn_stopped(self) -> None:
        await super().handle_user_turn_stopped()
        await self._forget()

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        match frame:
            case VADUserStartedSpeakingFrame():
                self._silent_at, self._is_whole = None, False
            case VADUserStoppedSpeakingFrame(stop_secs=stop_s):
                self._silent_at = time.monotonic() - stop_s
            case TranscriptionFrame(text=text):
                self._words = f"{self._words} {text.strip()}".strip()
            case UserBackchannelFrame():
                self._listens = True
            case RecognisingFrame(segments=segments):
                self._segments = segments
            case _:
                return await super().process_frame(frame)
        await super().process_frame(frame)
        await self._wait()
        return ProcessFrameResult.CONTINUE

    async def trigger_user_turn_stopped(self, *, enable_user_speaking_frames: bool | None = None) -> None:
        """Take note that the turn detector hears an end, and that there are words."""
        self._is_whole = True
        await self._wait()

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._stop()

    async def _wait(self) -> None:
        """End the turn now, or after what is left of the silence."""
        await self._stop()
        if self._silent_at is None or self._segments:
            return
        if self._words:
            asked = asks(self._context.last_of("assistant"))
            answers = asked and self._silent_at - self._began_at <= ANSWER_S
            over = (self._is_whole or answers) and not is_half(self._words, self._agent.stt.language)
            silence_s = self._agent.turn_silence_s
        else:
            over, silence_s = self._listens, self._agent.resume_after_s
        left_s = self._silent_at + silence_s - time.monotonic()
        if over or left_s <= 0:
            await super().trigger_user_turn_stopped()
        else:
            self._timer = self.task_manager.create_task(self._end_after(left_s), f"{self}::silence")

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timer = None  # the trigger calls `_stop`
        await super().trigger_user_turn_stopped()

    async def _forget(self) -> None:
        self._words, self._listens, self._is_whole = "", False, False
        await self._stop()

    async def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            await self.task_manager.cancel_task(timer)
