"""When the user's turn ends: the turn detector's verdict, the words, and what the agent had asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer
from pipecat.frames.frames import Frame, TranscriptionFrame, VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame
from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage
from pipecat.turns.types import ProcessFrameResult
from pipecat.turns.user_stop import TurnAnalyzerUserTurnStopStrategy

from agent_tts.agent.stt import RecognisingFrame
from agent_tts.agent.wording import asks, is_answer, is_half


class OneMessageContext(LLMContext):
    """Keeps what the user says in a row as one message: servers that check roles refuse two of a user."""

    def add_message(self, message: LLMContextMessage) -> None:
        messages: list[Any] = self.get_messages()
        last, more = messages[-1] if messages else None, message
        if _said(last, "user") is not None and (text := _said(more, "user")) is not None:
            self.set_messages([*messages[:-1], {"role": "user", "content": f"{_said(last, 'user')} {text}".strip()}])
        else:
            super().add_message(message)

    def add_messages(self, messages: list[LLMContextMessage]) -> None:
        for message in messages:
            self.add_message(message)


def _said(message: Any, role: str) -> str | None:
    """The text of a message of this role; None if it is not one."""
    content = message.get("content") if isinstance(message, dict) and message.get("role") == role else None
    return content.strip() if isinstance(content, str) else None


class WordedTurnEnd(TurnAnalyzerUserTurnStopStrategy):
    """Ends a turn as the turn detector says, but a half sentence after `patience_s` of silence, and an answer at once.

    All that was said is recognised before.

    Args:
        context: the conversation: a short answer to its last question needs no verdict.
        language: of the user; None: any.
    """

    def __init__(
        self,
        turn_analyzer: BaseTurnAnalyzer,
        context: LLMContext,
        patience_s: float,
        language: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(turn_analyzer=turn_analyzer)
        self._context = context
        self._patience_s = patience_s
        self._language = language
        self._clock = clock
        # The words of this turn.
        self._words = ""
        # Whether the user speaks, and since when not, on `clock`.
        self._speaks = False
        self._silent_at = 0.0
        # Segments that are not recognised yet, and whether the turn ends when they are.
        self._segments = 0
        self._is_over = False
        # Ends a half sentence. None while there is none.
        self._patience: asyncio.Task[None] | None = None

    async def handle_user_turn_started(self) -> None:
        await super().handle_user_turn_started()
        await self._forget()

    async def handle_user_turn_stopped(self) -> None:
        await super().handle_user_turn_stopped()
        await self._forget()

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._speaks, self._is_over = True, False
            await self._stop()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._speaks, self._silent_at = False, self._clock() - frame.stop_secs
        elif isinstance(frame, TranscriptionFrame):
            self._words = f"{self._words} {frame.text}".strip()
        elif isinstance(frame, RecognisingFrame):
            self._segments = frame.segments
            messages: list[Any] = self._context.get_messages()
            asked = asks((_said(messages[-1], "assistant") if messages else None) or "")
            answers = not frame.segments and is_answer(self._words, asked=asked, language=self._language)
            if (self._is_over and not frame.segments) or (answers and not self._speaks):
                await self.trigger_user_turn_stopped()
        return await super().process_frame(frame)

    async def trigger_user_turn_stopped(self, *, enable_user_speaking_frames: bool | None = None) -> None:
        """End the turn, unless there is something to wait for."""
        if self._segments > 1:  # the last one's words come before its end is told
            self._is_over = True
            return
        left_s = self._silent_at + self._patience_s - self._clock()
        if is_half(self._words, self._language) and left_s > 0.01:
            if self._patience is None:
                self._patience = self.task_manager.create_task(self._end_after(left_s), f"{self}::patience")
            return
        await super().trigger_user_turn_stopped(enable_user_speaking_frames=enable_user_speaking_frames)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._stop()

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._patience = None  # the trigger calls `_stop`
        await self.trigger_user_turn_stopped()

    async def _forget(self) -> None:
        self._words, self._is_over = "", False
        await self._stop()

    async def _stop(self) -> None:
        task, self._patience = self._patience, None
        if task is not None:
            await self.task_manager.cancel_task(task)
