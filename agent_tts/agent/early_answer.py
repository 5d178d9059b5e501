"""The answer to a turn that may be over is prepared, and spoken when it is over."""

from __future__ import annotations

from pipecat.frames.frames import EagerEndOfTurnCancelFrame, Frame, InterruptionFrame, LLMRunFrame
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation

from agent_tts.agent.turn_end import TurnEnd
from agent_tts.agent.wording import is_half


class EarlyAnswer(TurnEnd):
    """Asks the language model while it waits whether the user goes on, one request at a time.

    Pipecat's LLM services hold such an answer back until the turn ends, and drop it with its request when it is
    withdrawn: when the user goes on, and when the language model fails or calls a function, which is to run once. Half
    a sentence is not answered. There are `agent.early_answers` requests a turn at most.
    """

    # The words whose answer is prepared. None: none is.
    _prepared: str | None = None
    # Requests that are left in this turn.
    _left = 0
    # Whether the answer to the last turn was prepared.
    _was_prepared = False

    async def handle_user_turn_started(self) -> None:
        await super().handle_user_turn_started()
        self._left, self._was_prepared = self._agent.early_answers, False

    async def handle_user_turn_stopped(self) -> None:
        await super().handle_user_turn_stopped()
        await self._withdraw()

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        if isinstance(frame, EagerEndOfTurnCancelFrame):  # of the language model's service
            self._prepared, self._left = None, 0
            if self._was_prepared:  # it was withdrawn as the turn ended
                self._was_prepared = False
                await self.push_frame(LLMRunFrame())
        elif isinstance(frame, InterruptionFrame):
            self._prepared = None
        return await super().process_frame(frame)

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

    async def _wait(self) -> None:
        if self._silent_at is None or self._words != self._prepared:
            await self._withdraw()
        await super()._wait()
        waits = self._timer is not None and self._words and self._prepared is None
        # Servers that check roles refuse two messages of the user.
        if (
            waits
            and self._left
            and not is_half(self._words, self._agent.stt.language)
            and not self._context.last_of("user")
        ):
            self._prepared, self._left = self._words, self._left - 1
            await self.trigger_user_turn_inference_triggered(speculation=UserTurnSpeculation(self._words))

    async def _withdraw(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await self.trigger_user_turn_speculation_cancelled()
