"""An LLM server with scripted answers: OpenAI's chat completions over HTTP, streamed token by token."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.measure.chat import MODEL, chunk_line, running_chat

__all__ = ["MODEL"]

# A text, the delta of the only chunk, or what makes another response of the server.
Scripted = str | dict[str, Any] | Callable[[], Response]


def status(code: int, message: str = "raw secrets", **headers: str) -> Callable[[], Response]:
    """A refusal in OpenAI's form."""
    return lambda: JSONResponse({"error": {"message": message, "type": "x", "code": "x"}}, code, headers)


def stream(*deltas: dict[str, Any] | float, finish: str | None = "stop", ends: bool = True) -> Callable[[], Response]:
    """An answer of these deltas; a number is a pause in seconds. None: it ends without a `finish_reason`.

    Args:
        ends: not a minute after the `finish_reason`.
    """

    async def lines() -> AsyncIterator[str]:
        for delta in deltas:
            if isinstance(delta, float):
                await asyncio.sleep(delta)
            else:
                yield chunk_line(delta, None)
        if finish is not None:
            yield chunk_line({}, finish)
            if not ends:
                await asyncio.sleep(60)
            yield "data: [DONE]\n\n"

    return lambda: StreamingResponse(lines(), media_type="text/event-stream")


def call(index: int | None, name: str | None, arguments: object, call_id: str | None = None) -> dict[str, Any]:
    """The delta of a piece of a call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    piece: dict[str, Any] = {"function": {key: value for key, value in function.items() if value is not None}}
    piece |= {key: value for key, value in {"index": index, "id": call_id}.items() if value is not None}
    return {"tool_calls": [piece]}


class LlmServer:
    """Answers each request with the next of `answers`, and repeats the last one. A dict is the delta of a chunk."""

    def __init__(self, *answers: Scripted) -> None:
        self.answers: deque[Scripted] = deque(answers or ("All right.",))
        # The messages of each request, in order.
        self.requests: list[list[dict[str, Any]]] = []
        # Their tools.
        self.tools: list[Any] = []
        # Their bodies as a whole.
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    def history(self) -> list[tuple[str, str]]:
        """(role, text) of the last request's messages, without the system message."""
        return [(m["role"], m.get("content", "")) for m in self.requests[-1] if m["role"] in ("user", "assistant")]

    def answer(self, messages: list[dict[str, Any]]) -> str | dict[str, Any] | Response:
        self.requests.append(messages)
        found = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        return found() if callable(found) and not isinstance(found, Response) else found


@asynccontextmanager
async def running_llm(
    *answers: Scripted, token_s: float = 0.01, listed: tuple[str, ...] | int = (MODEL,)
) -> AsyncIterator[LlmServer]:
    """A running server; `listed` are its models, or the status in place of them."""
    llm = LlmServer(*answers)

    def note(body: dict[str, Any]) -> None:
        llm.tools.append(body.get("tools"))
        llm.bodies.append(body)

    async with running_chat(llm.answer, think_s=token_s, token_s=token_s, on_request=note, listed=listed) as llm.url:
        yield llm
