"""An LLM server with scripted answers: OpenAI's chat completions over HTTP, streamed token by token."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.measure.chat import MODEL, running_chat

__all__ = ["MODEL"]


class LlmServer:
    """Answers each request with the next of `answers`, and repeats the last one. A dict is the delta of a chunk."""

    def __init__(self, *answers: str | dict[str, Any]) -> None:
        self.answers: deque[str | dict[str, Any]] = deque(answers or ("All right.",))
        # The messages of each request, in order.
        self.requests: list[list[dict[str, Any]]] = []
        # Their tools.
        self.tools: list[Any] = []
        self.url = ""

    def history(self) -> list[tuple[str, str]]:
        """(role, text) of the last request's messages, without the system message."""
        return [(m["role"], m.get("content", "")) for m in self.requests[-1] if m["role"] in ("user", "assistant")]

    def answer(self, messages: list[dict[str, Any]]) -> str | dict[str, Any]:
        self.requests.append(messages)
        return self.answers.popleft() if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def running_llm(*answers: str | dict[str, Any], token_s: float = 0.01) -> AsyncIterator[LlmServer]:
    """A running server."""
    llm = LlmServer(*answers)

    def note(body: dict[str, Any]) -> None:
        llm.tools.append(body.get("tools"))

    async with running_chat(llm.answer, think_s=token_s, token_s=token_s, on_request=note) as llm.url:
        yield llm
