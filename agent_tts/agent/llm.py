"""The language model of a call if its server can be reached, otherwise a built-in responder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any

import httpx
from loguru import logger
from openai import AsyncOpenAI
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService

from agent_tts.agent.completions import ChatCompletions, TokenLimit, text_of
from agent_tts.agent.stt import ComponentStatus
from agent_tts.config.settings import AgentLlm

FRESH_S = 5.0  # how long a found status is used again
RESPONDER = "built-in responder"


class LanguageModel:
    """Looks for the language model's server before each call, so that a server that starts later is used."""

    def __init__(self, settings: AgentLlm, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._limit = TokenLimit(settings.token_limit)
        # The last look at the server, which all share who ask meanwhile, and until when what it found is used.
        self._look: asyncio.Task[ComponentStatus] | None = None
        self._used_until = 0.0
        # What was last written to the log about the server.
        self._told: str | None = None

    async def status(self) -> ComponentStatus:
        """What would answer now, within `agent.llm.look_s` seconds. Cancelling it is safe."""
        if self._look is None or (self._look.done() and self._clock() >= self._used_until):
            self._look = asyncio.create_task(self._look_for_it(), name="look for the language model")
        return await asyncio.shield(self._look)

    async def _look_for_it(self) -> ComponentStatus:
        status = await self._probe()
        self._used_until = self._clock() + FRESH_S
        if status.message != self._told:
            self._told = status.message
            if status.message is not None:
                logger.warning("agent: {}", status.message)
        return status

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
        make = partial(ChatCompletions, self._settings, self._limit, for_client=for_client)
        # A thread makes it: a client reads the system's certificates, for 100 ms in which no call's audio would leave.
        return await asyncio.to_thread(
            make, base_url=self._settings.base_url, api_key=self._key or "none", settings=settings
        )

    async def start(self) -> None:
        """Import what the first call needs, for 300 ms in which the audio of other calls would not leave."""
        await asyncio.to_thread(_import_clients)
        self._look = asyncio.create_task(self._look_for_it(), name="look for the language model")

    async def close(self) -> None:
        """Stop looking."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)

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
        if answer.status_code == 401:
            return _none(f"the language model's server at {url} does not accept the key (agent.llm.api_key)")
        if answer.is_success or self._settings.model is None:
            return self._choose(_names(answer), url, answer.status_code)
        used = f"{url}/models answers with HTTP {answer.status_code}; {self._settings.model} is used all the same."
        return ComponentStatus("openai", self._settings.model, used)

    def _choose(self, names: list[str], url: str, code: int) -> ComponentStatus:
        wanted = self._settings.model
        if wanted is None and code != 200:
            how = "see whether its address is right (most end in /v1), or name a model: `--llm-model NAME`"
            return _none(f"the server at {url} lists no models (HTTP {code}): {how}")
        # Proxies list patterns, too: openai/*
        named = [name for name in names if "*" not in name]
        if wanted is None and not named:
            return _none(
                f"the server at {url} has no model: fetch one: `ollama pull llama3.2`, or name one: `--llm-model`"
            )
        if wanted is not None and names and not any(_lists(name, wanted) for name in names):
            return _none(f"the server at {url} has no model {wanted}; it has {', '.join(names[:8])}")
        return ComponentStatus("openai", wanted or named[0])


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


def _lists(name: str, wanted: str) -> bool:
    """Whether a name or pattern of a server's list stands for a model. Ollama's names end in a tag."""
    return fnmatchcase(wanted, name) or fnmatchcase(f"{wanted}:latest", name)


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
        for word in answer(frame.context.get_messages()).split(None, MAX_WORDS)[:MAX_WORDS]:
            await self.push_frame(LLMTextFrame(f"{word} "))
            await asyncio.sleep(WORD_S)
        await self.push_frame(LLMFullResponseEndFrame())


def answer(messages: Sequence[Any]) -> str:
    """The answer to a conversation; it depends on the user's last message."""
    users = [message for message in messages if isinstance(message, dict) and message.get("role") == "user"]
    said = text_of(users[-1].get("content")).strip() if users else ""
    if not said:
        return "Hello. There is no language model here, so I only repeat what you say."
    if len(users) == 1:
        return f"There is no language model here, so I only repeat what you say. You said: {said}"
    return f"You said: {said}"
