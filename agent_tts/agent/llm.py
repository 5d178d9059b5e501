"""The language model of a call if its server can be reached, otherwise a built-in responder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import httpx
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk
from pipecat.frames.frames import (
    DataFrame,
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService

from agent_tts.agent.stt import ComponentStatus
from agent_tts.config.settings import AgentLlm

FRESH_S = 5.0  # how long a found status is used again
RESPONDER = "built-in responder"


class LanguageModel:
    """Looks for the language model's server before each call, so that a server that starts later is used."""

    def __init__(self, settings: AgentLlm, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        # The last status, and until when it is used.
        self._found: tuple[ComponentStatus, float] | None = None

    async def status(self) -> ComponentStatus:
        """What would answer now, within `agent.llm.look_s` seconds. Cancelling it is safe."""
        if self._found is None or self._clock() >= self._found[1]:
            self._found = (await self._probe(), self._clock() + FRESH_S)
        return self._found[0]

    async def service(self, *, for_client: bool = False) -> FrameProcessor:
        """The processor for a new pipeline.

        Args:
            for_client: the instructions are in its contexts, and it leaves function calls to the client.
        """
        status = await self.status()
        if status.kind == "builtin":
            return Responder()
        settings = OpenAILLMService.Settings(
            model=status.name,
            system_instruction=None if for_client else self._settings.instructions,
            max_tokens=self._settings.max_tokens,
        )
        make = _ClientsFunctions if for_client else _LanguageModelService
        # A thread makes it: a client reads the system's certificates, for 100 ms in which no call's audio would leave.
        return await asyncio.to_thread(
            make, base_url=self._settings.base_url, api_key=self._key or "none", settings=settings
        )

    async def start(self) -> None:
        """Import what the first call needs, for 300 ms in which the audio of other calls would not leave."""
        await asyncio.to_thread(_import_clients)

    @property
    def _key(self) -> str | None:
        return None if self._settings.api_key is None else self._settings.api_key.get_secret_value()

    async def _probe(self) -> ComponentStatus:
        url = self._settings.base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            async with await asyncio.to_thread(
                httpx.AsyncClient, timeout=self._settings.look_s, headers=headers
            ) as client:
                answer = await client.get(f"{url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return _none(
                f"no language model answers at {url} ({type(error).__name__}): start one (`ollama serve`), "
                "or name another: `agent-tts agent --llm URL`"
            )
        if not answer.is_success:
            return _none(f"the language model's server at {url} answers with HTTP {answer.status_code}")
        return self._choose(_names(answer), url)

    def _choose(self, names: list[str], url: str) -> ComponentStatus:
        wanted = self._settings.model
        if wanted is None and not names:
            return _none(f"the server at {url} has no model: fetch one: `ollama pull llama3.2`")
        if wanted is not None and names and wanted not in names and f"{wanted}:latest" not in names:
            return _none(f"the server at {url} has no model {wanted}; it has {', '.join(names[:8])}")
        return ComponentStatus("openai", wanted or names[0])


class _LanguageModelService(OpenAILLMService):
    """Pipecat's service, which would leave its connections open."""

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()


@dataclass
class FunctionCalls(DataFrame):
    """The language model calls functions of the client."""

    calls: Sequence[FunctionCallFromLLM]


@dataclass
class CutShort(DataFrame):
    """The language model ends its answer early."""

    reason: str  # in the words of OpenAI's Realtime API


# The reasons of chat completions lead to them.
CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class _ClientsFunctions(_LanguageModelService):
    async def get_chat_completions(self, context: LLMContext) -> AsyncGenerator[ChatCompletionChunk]:
        """The answer's chunks; pushes a `CutShort` with the one that says so."""
        return self._watched(await super().get_chat_completions(context))

    async def _watched(self, chunks: AsyncStream[ChatCompletionChunk]) -> AsyncGenerator[ChatCompletionChunk]:
        async with chunks:
            async for chunk in chunks:
                reason = chunk.choices[0].finish_reason if chunk.choices else None
                if reason in CUTS:
                    await self.push_frame(CutShort(CUTS[reason]))
                yield chunk

    async def run_function_calls(self, function_calls: Sequence[FunctionCallFromLLM]) -> None:
        """Push a `FunctionCalls` instead."""
        await self.push_frame(FunctionCalls(function_calls))


def _import_clients() -> None:
    """Have httpx and openai import what they import when they are used."""
    import_module("anyio._backends._asyncio")
    httpx.AsyncClient()
    _ = AsyncOpenAI(api_key="none").chat.completions


def _names(answer: httpx.Response) -> list[str]:
    """Model names in an answer of OpenAI's shape; none in another answer."""
    try:
        body: Any = answer.json()
    except ValueError:
        return []
    cards = body.get("data") if isinstance(body, dict) else None
    return [str(card["id"]) for card in cards or () if isinstance(card, dict) and "id" in card]


def _none(why: str) -> ComponentStatus:
    return ComponentStatus("builtin", RESPONDER, f"{why[0].upper()}{why[1:]}. The built-in responder answers.")


MAX_WORDS = 200  # of an answer, as long as a language model's: Pipecat compares each with all since the last full stop
WORD_S = 0.01  # between two of them, each of which passes the pipeline; nobody speaks faster


class Responder(FrameProcessor):
    """Stands in a pipeline for a language model: repeats the user's words."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer an LLM context with a start, text frames and an end."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        for word in answer(frame.context.get_messages()).split(" ")[:MAX_WORDS]:
            await self.push_frame(LLMTextFrame(f"{word} "))
            await asyncio.sleep(WORD_S)
        await self.push_frame(LLMFullResponseEndFrame())


def answer(messages: Sequence[Any]) -> str:
    """The answer to a conversation; it depends on the user's last message."""
    users = [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
    said = _text(users[-1].get("content")).strip() if users else ""
    if not said:
        return "Hello. There is no language model here, so I only repeat what you say."
    if len(users) == 1:
        return f"There is no language model here, so I only repeat what you say. You said: {said}"
    return f"You said: {said}"


def _text(content: object) -> str:
    """The text in the content of a message, which may also be None, or a list of parts with images and sound."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return " ".join(text for text in texts if isinstance(text, str))
