"""When the user's turn ends: by the turn detector, the words, what the agent had asked, and silence.

The answer to a turn that may be over is prepared, and spoken when it is over.
"""

from __future__ import annotations

import asyncio
import time

from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    InterruptionFrame,
    LLMRunFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation
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

    While it waits whether the user goes on, it asks the language model, one request at a time. Pipecat's LLM services
    hold such an answer back until the turn ends, and drop it with its request when it is withdrawn: when the user goes
    on, and when the language model fails or calls a function, which is to run once. Half a sentence is not answered.

    Args:
        context: the conversation, for what the agent had asked.
        early: requests of a turn that prepare its answer.
    """

    def __init__(
        self, turn_analyzer: BaseTurnAnalyzer, context: OneMessageContext, agent: Agent, early: int = 0
    ) -> None:
        super().__init__(turn_analyzer=turn_analyzer)
        self._context, self._agent, self._early = context, agent, early
        # The words whose answer is prepared. None: none is.
        self._prepared: str | None = None
        # Requests that are left in this turn, and whether the answer to the last one was prepared.
        self._left, self._was_prepared = 0, False
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
        self._left, self._was_prepared = self._early, False

    async def handle_user_turn_stopped(self) -> None:
        await super().handle_user_turn_stopped()
        await self._forget()
        await self._withdraw()

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
            case EagerEndOfTurnCancelFrame():  # of the language model's service
                self._prepared, self._left = None, 0
                if self._was_prepared:  # it was withdrawn as the turn ended
                    self._was_prepared = False
                    await self.push_frame(LLMRunFrame())
                return await super().process_frame(frame)
            case InterruptionFrame():
                self._prepared = None
                return await super().process_frame(frame)
            case _:
                return await super().process_frame(frame)
        await super().process_frame(frame)
        await self._wait()
        return ProcessFrameResult.CONTINUE

    async def trigger_user_turn_stopped(self, *, enable_user_speaking_frames: bool | None = None) -> None:
        """Take note that the turn detector hears an end, and that there are words."""
        self._is_whole = True
        await self._wait()

    async def trigger_user_turn_inference_triggered(self, *, speculation: UserTurnSpeculation | None = None) -> None:
        """Ask the language model, unless the answer is prepared."""
        if speculation is not None or self._prepared is None:
            await super().trigger_user_turn_inference_triggered(speculation=speculation)

    async def trigger_user_turn_finalized(
        self, *, enable_user_speaking_frames: bool | None = None, confirms_speculation: bool = False
    ) -> None:
        """End the turn, and have its answer spoken if it is prepared."""
        self._was_prepared, self._prepared = self._prepared is not None, None
        await super().trigger_user_turn_finalized(
            enable_user_speaking_frames=enable_user_speaking_frames,
            confirms_speculation=confirms_speculation or self._was_prepared,
        )

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._stop()

    async def _wait(self) -> None:
        """End the turn now, or after what is left of the silence, in which its answer is prepared."""
        await self._stop()
        if self._silent_at is None or self._words != self._prepared:
            await self._withdraw()
        if self._silent_at is None or self._segments:
            return
        if self._words:
            asked = asks(self._context.last_of("assistant"))
            answers = asked and self._silent_at - self._began_at <= ANSWER_S
            half = is_half(self._words, self._agent.stt.language)
            over, silence_s = (self._is_whole or answers) and not half, self._agent.turn_silence_s
        else:
            half = True
            over, silence_s = self._listens, self._agent.resume_after_s
        left_s = self._silent_at + silence_s - time.monotonic()
        if over or left_s <= 0:
            await super().trigger_user_turn_stopped()
            return
        self._timer = self.task_manager.create_task(self._end_after(left_s), f"{self}::silence")
        # Servers that check roles refuse two messages of the user.
        if self._prepared is None and self._left and not half and not self._context.last_of("user"):
            self._prepared, self._left = self._words, self._left - 1
            await self.trigger_user_turn_inference_triggered(speculation=UserTurnSpeculation(self._words))

    async def _withdraw(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await self.trigger_user_turn_speculation_cancelled()

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
