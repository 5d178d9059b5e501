"""Answers when there is no language model: enough to hear the voice and to try every part of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

NAME = "built-in responder"


class Responder(FrameProcessor):
    """In the place of a language model in a pipeline: says what it heard, and what it is."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a context as a language model does: a start, pieces of text, an end."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        for word in answer(frame.context.get_messages()).split(" "):
            await self.push_frame(LLMTextFrame(f"{word} "))
        await self.push_frame(LLMFullResponseEndFrame())


def answer(messages: Sequence[Any]) -> str:
    """What is said to a conversation, whose last message of the user is the one that counts."""
    users = [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
    said = str(users[-1].get("content", "")).strip() if users else ""
    if not said:
        return "Hello. There is no language model here, so I only repeat what you say."
    if len(users) == 1:
        return f"There is no language model here, so I only repeat what you say. You said: {said}"
    return f"You said: {said}"
