"""Fillers: something short that is said once where the user waits long for the first word of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pipecat.frames.frames import (
    Frame,
    FunctionCallResultFrame,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSSpeakFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

FILLER = "filler"  # the type of its text, which RTVI tells clients


class Fillers(FrameProcessor):
    """Says a filler where the language model and the functions that it calls take long. Its place: before the speech.

    One at most for a turn, never after the first word of the answer nor while the user speaks, and never in the LLM's
    context. It is interrupted as an answer is.

    Args:
        text: gives what is said, for the voice of now; an empty text is not said.
        after_s: seconds from the end of the turn.
    """

    def __init__(self, text: Callable[[], str], after_s: float) -> None:
        super().__init__()
        self._text = text
        self._after_s = after_s
        # Whether the user waits for the first word, and has not heard a filler.
        self._waits = False
        # Whether functions run, whose results the next response of the language model is about.
        self._calls = False
        # Says it. None while nobody waits or the user speaks.
        self._timer: asyncio.Task[None] | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Pass each frame on, and note how far the answer is."""
        await super().process_frame(frame, direction)
        match frame:
            case LLMFullResponseStartFrame():
                self._waits, self._calls = self._waits or not self._calls, False
                self._start()
            case FunctionCallsStartedFrame():
                self._calls = True
            case UserStoppedSpeakingFrame():
                self._start()
            case VADUserStartedSpeakingFrame():
                await self._stop()
            case InterruptionFrame():
                await self._end()
            case LLMTextFrame(text=text) if text.strip():
                await self._end()
            case LLMFullResponseEndFrame() if not self._calls:
                await self._end()
            case FunctionCallResultFrame(properties=given) if given is not None and given.run_llm is False:
                await self._end()  # no answer follows
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._end()

    async def _say(self) -> None:
        await asyncio.sleep(self._after_s)
        self._waits, self._timer = False, None
        if text := self._text():
            await self.push_frame(TTSSpeakFrame(text, append_to_context=False, text_type=FILLER))

    def _start(self) -> None:
        if self._waits and self._timer is None:
            self._timer = self.create_task(self._say(), name="filler")

    async def _end(self) -> None:
        self._waits = False
        await self._stop()

    async def _stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            await self.cancel_task(timer)
