"""A server of OpenAI's chat completions with scripted answers, at the pace of a language model."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_tts.errors import Internal

MODEL = "bench"
THINK_S = 0.6  # before the first token: an interrupted answer is silent when the next one begins
TOKEN_S = 0.02
ANSWER = (
    "Winter nights are long and cold, and so people have always told each other stories by the fire. Some of these "
    "stories are very old. They tell of ships, of kings, and of a bird that could speak every language of the world. "
)
START_S = 5.0

# Messages of a request -> text of the answer, or the delta of its only chunk, whose `finish_reason` is the answer's; or
# another response of the server.
Answer = Callable[[list[dict[str, Any]]], str | dict[str, Any] | Response]


@asynccontextmanager
async def running_chat(
    answer: Answer = lambda messages: ANSWER,
    *,
    think_s: float = THINK_S,
    token_s: float = TOKEN_S,
    on_first: Callable[[], None] = lambda: None,
    on_request: Callable[[dict[str, Any]], None] = lambda body: None,
    listed: tuple[str, ...] | int = (MODEL,),
) -> AsyncIterator[str]:
    """Run the server; yields its base URL.

    Args:
        think_s: before the first token.
        token_s: between tokens.
        on_request: called with the body of each request.
        listed: names of the models, or the status in place of them.
        on_first: called when the first token of an answer is sent.
    """

    async def models(_: Request) -> Response:
        if isinstance(listed, int):
            return Response("raw secrets", listed)
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in listed]})

    async def completions(request: Request) -> Response:
        body = await request.json()
        on_request(body)
        text = answer(body["messages"])
        if isinstance(text, Response):
            return text
        return StreamingResponse(_tokens(text, think_s, token_s, on_first), media_type="text/event-stream")

    routes = [Route("/v1/models", models), Route("/v1/chat/completions", completions, methods=["POST"])]
    config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # pyrefly: ignore[bad-assignment]  # the caller handles Ctrl-C
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve([listener]), name="chat")
        try:
            async with asyncio.timeout(START_S):
                while not server.started:
                    if task.done():
                        raise Internal("the language model's server did not start")
                    await asyncio.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await task


async def _tokens(
    text: str | dict[str, Any], think_s: float, token_s: float, on_first: Callable[[], None]
) -> AsyncIterator[str]:
    await asyncio.sleep(think_s)
    on_first()
    deltas = [text] if isinstance(text, dict) else [{"content": token} for token in re.findall(r"\S+\s*", text)]
    reason = "stop"
    for delta in deltas:
        reason = delta.get("finish_reason", reason)
        yield chunk_line(delta, None)
        await asyncio.sleep(token_s)
    yield chunk_line({}, reason)
    yield "data: [DONE]\n\n"


def chunk_line(delta: dict[str, Any], reason: str | None) -> str:
    """A chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}
    return f"data: {json.dumps(chunk)}\n\n"
