"""A language model's server: OpenAI's chat completions over real HTTP, token by token. It says what it is told."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = "parrot"


class LlmServer:
    """Answers each request with the next of `answers`, or with the last one again."""

    def __init__(self, *answers: str, token_s: float = 0.01) -> None:
        self.answers = deque(answers or ("All right.",))
        self.token_s = token_s
        # The messages of each request, in their order.
        self.requests: list[list[dict[str, Any]]] = []
        self.url = ""

    def history(self) -> list[tuple[str, str]]:
        """Roles and texts of the last request, without the system's."""
        return [(m["role"], m["content"]) for m in self.requests[-1] if m["role"] in ("user", "assistant")]

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body["messages"])
        answer = self.answers.popleft() if len(self.answers) > 1 else self.answers[0]
        return StreamingResponse(self._tokens(answer), media_type="text/event-stream")

    async def _tokens(self, answer: str) -> AsyncIterator[str]:
        for token in re.findall(r"\S+\s*", answer):
            await asyncio.sleep(self.token_s)
            yield _chunk({"content": token}, None)
        yield _chunk({}, "stop")
        yield "data: [DONE]\n\n"


def _chunk(delta: dict[str, str], reason: str | None) -> str:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n"


@asynccontextmanager
async def running_llm(*answers: str, token_s: float = 0.01) -> AsyncIterator[LlmServer]:
    """A server that takes requests."""
    llm = LlmServer(*answers, token_s=token_s)
    routes = [
        Route("/v1/models", llm.models),
        Route("/v1/chat/completions", llm.completions, methods=["POST"]),
    ]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        llm.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        )
        task = asyncio.create_task(server.serve([listener]), name="llm")
        try:
            while not server.started:
                await asyncio.sleep(0.01)
            yield llm
        finally:
            server.should_exit = True
            await task
