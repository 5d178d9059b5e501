"""Answers of servers with OpenAI's chat completions, however they refuse, fail, fall silent and stream."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import httpx
import openai
from loguru import logger
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import (
    Choice,
    ChoiceDelta,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
)
from pipecat.frames.frames import (
    DataFrame,
    EagerEndOfTurnCancelFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService

from agent_tts.config.settings import AgentLlm
from agent_tts.integrations.pipecat.service import AgentTTSService
from agent_tts.system.private_names import require

RETRY_S, MOST_RETRY_S = 0.3, 2.0  # until the second request, and the longest wait that a server may ask for
AFTER_S = 1.0  # for a server to end its stream after the answer's end
MOST_CALLS, MOST_ARGUMENTS = 64, 1 << 20  # function calls of an answer, and characters of their arguments
LIMIT_NAMES = ("max_tokens", "max_completion_tokens", None)
# The reasons of chat completions lead to those of OpenAI's Realtime API.
CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}

require("pipecat-ai", {OpenAILLMService: "_client _speculation_gate"})


class AnswerFailed(Exception):
    """There is no answer, or no more of it. Its text is for the user, and tells nothing that the server said."""


@dataclass
class FunctionCalls(DataFrame):
    """The language model calls functions of the client."""

    calls: list[FunctionCall]
    after_text: bool  # whether the answer has text before them


@dataclass
class CutShort(DataFrame):
    """The language model's answer has no end."""

    reason: str | None  # in the words of OpenAI's Realtime API; None: the stream just ended


@dataclass(slots=True)
class FunctionCall:
    """A call as far as it has come."""

    id: str
    name: str
    index: int | None
    arguments: str = ""

    @property
    def parsed(self) -> Any:
        """The arguments; None if they are no JSON. Most servers send nothing where there are none."""
        try:
            return json.loads(self.arguments or "{}")
        except ValueError:
            return None


@dataclass(slots=True)
class ChunkReader:
    """Reads the chunks of one answer: its text as it comes, and its calls, which are whole when it ends."""

    calls: list[FunctionCall] = field(default_factory=list)
    has_text: bool = False
    made: int = 0  # chunks with something that the model has made, thoughts included: each has a token at least
    finish: str | None = None  # the server's reason for the end; None before it

    def read(self, chunk: ChatCompletionChunk) -> str:
        """The text of a chunk."""
        choice = chunk.choices[0] if chunk.choices else None
        delta = choice and choice.delta
        if choice is None or delta is None:
            return ""
        self.finish = choice.finish_reason or self.finish
        if self.finish == "error":  # a proxy's word for the fault of the server behind it
            raise AnswerFailed(_BROKEN)
        fields = delta.model_dump(exclude_none=True, warnings=False)
        self.made += any(value for name, value in fields.items() if name != "role")
        ours: set[int] = set()
        for given in fields.get("tool_calls") or ():
            self._call(given, ours)
        text = text_of(delta.content) or text_of(delta.refusal)
        self.has_text = self.has_text or bool(text.strip())
        return text

    def _call(self, given: dict[str, Any], ours: set[int]) -> None:
        """A piece of a call; `ours` holds the calls that the same chunk has named."""
        function = given.get("function") or {}
        index, call_id, name = given.get("index"), given.get("id") or "", function.get("name") or ""
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        call = self._known(index, call_id)
        # Servers number calls from 0 or 1, or give all of them one number and ids of their own.
        if call is None or (name and (call_id not in ("", call.id) or id(call) in ours or _is_whole(call, call_id))):
            call = FunctionCall(call_id or f"call_{token_hex(8)}", name, index)
            self.calls.append(call)
        elif name and arguments and arguments == call.arguments:
            return  # the call once more, as a whole
        elif name not in ("", call.name):
            call.name += name
        if name:
            ours.add(id(call))
        call.arguments += arguments
        if len(self.calls) > MOST_CALLS or len(call.arguments) > MOST_ARGUMENTS:
            raise AnswerFailed(_BROKEN)

    def _known(self, index: int | None, call_id: str) -> FunctionCall | None:
        """The call that a piece belongs to, by its id or else its number; a piece with neither is of the last call."""
        by_id = (call for call in self.calls if call_id and call.id == call_id)
        by_index = (call for call in reversed(self.calls) if index is None or call.index == index)
        return next(by_id, None) or next(by_index, None)


def _is_whole(call: FunctionCall, call_id: str) -> bool:
    """Whether a named piece without an id begins another call."""
    return not call_id and bool(call.arguments) and call.parsed is not None


def text_of(content: object) -> str:
    """The text in the content of a message, which may also be None, or a list of parts with images and sound."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return " ".join(text for text in texts if isinstance(text, str))


class TokenLimit:
    """By which name a server takes the longest answer; one for all of its calls, so that each refusal is met once."""

    def __init__(self, setting: str) -> None:
        self._names = LIMIT_NAMES if setting == "auto" else (None if setting == "none" else setting,)
        # The last that the server took.
        self.taken = self._names[0]

    @property
    def names(self) -> list[str | None]:
        """Those to be tried, best first."""
        return sorted(self._names, key=lambda name: name != self.taken)


class ChatCompletions(OpenAILLMService):
    """Pipecat's service, with limits of time, one more request before the first word, and an apology where both fail.

    Args:
        llm: times and the apology.
        limit: of the server.
        for_client: its function calls are the client's, who also gets a failure and no apology.
    """

    def __init__(self, llm: AgentLlm, limit: TokenLimit, *, for_client: bool, **options: Any) -> None:
        super().__init__(**options)
        self.get_llm_adapter().file_resolver = None  # it would fetch what a message names
        self._llm = llm
        self._limit = limit
        self._for_client = for_client
        # By which name the request now being made has the longest answer.
        self._limit_name = limit.taken
        # The longest answer of that request, in tokens.
        self._most = llm.max_tokens
        # What is said where there is no answer.
        self.apology: Callable[[], str] = str
        # Speaks an early answer while it is held back, of which this is the text; nothing of it is pushed until then.
        self.tts: AgentTTSService | None = None
        self._held = ""

    def create_client(self, **options: Any) -> openai.AsyncOpenAI:  # pyrefly: ignore[bad-override]  # all by name
        """OpenAI's client, which would otherwise ask again by itself, for as long as a server wants."""
        return super().create_client(**options).with_options(max_retries=0)

    async def cleanup(self) -> None:
        """End its connections, too, which Pipecat leaves open."""
        await super().cleanup()
        await self._client.close()

    def build_chat_completion_params(self, params_from_context: Any) -> dict[str, Any]:
        params: dict[str, Any] = super().build_chat_completion_params(params_from_context)
        most = [params.pop(name, None) for name in LIMIT_NAMES if name]
        self._most = most[0] or self._llm.max_tokens
        return params if self._limit_name is None else params | {self._limit_name: most[0]}

    async def push_frame(self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM) -> None:
        """Have what is held back spoken."""
        if self.tts is not None:
            if isinstance(frame, EagerEndOfTurnCancelFrame | InterruptionFrame | LLMFullResponseStartFrame):
                self._held = ""
                self.tts.drop_prepared()
            elif self._speculation_gate.is_speculating and isinstance(frame, LLMTextFrame | LLMFullResponseEndFrame):
                self._held = f"{self._held}{getattr(frame, 'text', '')}".lstrip()
                self.tts.prepare(self._held, is_whole=isinstance(frame, LLMFullResponseEndFrame))
        await super().push_frame(frame, direction)

    async def push_error(self, error_msg: str, exception: Exception | None = None, **options: Any) -> None:  # pyrefly: ignore[bad-override]
        """Tell the user why there is no answer in our words alone; an early answer is asked for again."""
        if self._speculation_gate.is_speculating:
            await self.broadcast_frame(EagerEndOfTurnCancelFrame)
            return
        told = str(exception) if isinstance(exception, AnswerFailed) else error_msg
        await super().push_error(told, exception=exception, **options)

    async def get_chat_completions(self, context: LLMContext) -> AsyncGenerator[ChatCompletionChunk]:
        """The answer's chunks, in the one shape that Pipecat reads. Raises AnswerFailed at its end."""
        return self._answer(context)

    async def _answer(self, context: LLMContext) -> AsyncGenerator[ChatCompletionChunk]:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._llm.first_token_s
        self._limit_name, *names = self._limit.names
        is_second = False
        while True:
            reader = ChunkReader()
            try:
                async with aclosing(self._chunks(context, reader, due)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                self._limit.taken = self._limit_name
                return
            except _FAULTS as error:
                logger.warning("agent: the language model at {}: {!r}", self._client.base_url, error)
                asks_again = not reader.has_text and reader.finish not in CUTS
                if asks_again and self._is_limit_refused(error):
                    asks_again = bool(names)
                    self._limit_name = names.pop(0) if names else None
                elif asks_again:
                    wait_s = _retry_s(error)
                    asks_again = not is_second and loop.time() + wait_s < due
                    if asks_again:
                        is_second = True
                        await asyncio.sleep(wait_s)
                if not asks_again:
                    said = self.apology()
                    if said and not self._for_client:
                        yield _chunk(ChoiceDelta(content=f" {said}" if reader.has_text else said))
                    raise AnswerFailed(reason_of(error, self._llm)) from error

    async def _chunks(
        self, context: LLMContext, reader: ChunkReader, due: float
    ) -> AsyncGenerator[ChatCompletionChunk]:
        """The chunks of one request, the first until `due`, on the loop's clock."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(due):
            stream = await super().get_chat_completions(context)
        async with stream:
            while True:
                try:
                    async with asyncio.timeout_at(due):
                        chunk = await anext(stream, None)
                except (TimeoutError, httpx.HTTPError):
                    if reader.finish is None:
                        raise
                    break  # all of the answer is here
                if chunk is None:
                    break
                if (text := reader.read(chunk)) and reader.has_text:
                    yield _chunk(ChoiceDelta(content=text), chunk)
                elif not chunk.choices:
                    yield chunk  # what it has cost
                if reader.made:
                    due = loop.time() + (AFTER_S if reader.finish else self._llm.token_s)
                if self._limit_name is None and reader.made >= self._most and reader.finish is None:
                    reader.finish = "length"  # such a server would go on for as long as it wants
                    break
        async for chunk in self._end(reader):
            yield chunk

    async def _end(self, reader: ChunkReader) -> AsyncGenerator[ChatCompletionChunk]:
        """The end of an answer: its calls, and whether it is whole."""
        cut = reader.finish is None or reader.finish in CUTS
        # A call that was cut is none.
        calls = [call for call in reader.calls if call.name and not (cut and call.parsed is None)]
        if not reader.has_text and not calls and (reader.finish not in CUTS or not self._for_client):
            raise AnswerFailed("The language model gives an empty answer.")
        if self._for_client:
            if cut:
                await self.push_frame(CutShort(CUTS.get(reader.finish or "")))
            if calls:
                await self.push_frame(FunctionCalls(calls, reader.has_text))
            return
        if reader.finish is None:
            logger.warning("agent: the language model's stream ended before its answer")
        if not all(isinstance(call.parsed, dict) for call in calls):
            raise AnswerFailed(_BROKEN)
        for index, call in enumerate(calls):
            function = ChoiceDeltaToolCallFunction(name=call.name, arguments=call.arguments)
            given = ChoiceDeltaToolCall(index=index, id=call.id, type="function", function=function)
            yield _chunk(ChoiceDelta(tool_calls=[given]))

    def _is_limit_refused(self, error: Exception) -> bool:
        """Whether a server does not know the name of the longest answer; one for which it is too long says more."""
        if not isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
            return False
        return bool(self._limit_name) and self._limit_name in str(error) and "context" not in str(error)


_BROKEN = "The language model's server sends what is no answer."
# What a server can cause. The last three: a shape that OpenAI's client has not checked.
_FAULTS = (AnswerFailed, TimeoutError, openai.OpenAIError, httpx.HTTPError, ValueError, TypeError, AttributeError)


def reason_of(error: Exception, llm: AgentLlm) -> str:
    """Why there is no answer, for the user."""
    match error:
        case AnswerFailed():
            return str(error)
        case TimeoutError() | openai.APITimeoutError():
            return f"The language model was silent for too long (agent.llm.first_token_s is {llm.first_token_s:g})."
        case openai.AuthenticationError() | openai.PermissionDeniedError():
            return "The language model's server does not accept the key."
        case openai.NotFoundError():
            return "The language model's server does not know this model, or has another address."
        case openai.RateLimitError():
            return "The language model's server is asked too often now."
        case openai.APIStatusError(status_code=status):
            return f"The language model's server answers with HTTP {status}."
        case openai.APIConnectionError() | httpx.HTTPError():
            return "The language model's server cannot be reached."
    return _BROKEN


def _retry_s(error: Exception) -> float:
    """After how long another request may help; infinite if none does."""
    if isinstance(error, TimeoutError):
        return math.inf
    if not isinstance(error, openai.APIStatusError):
        return RETRY_S
    if error.status_code < 500 and error.status_code not in (408, 409, 429):
        return math.inf
    try:
        wait_s = float(error.response.headers.get("retry-after", RETRY_S))
    except ValueError:  # a date
        return math.inf
    return wait_s if wait_s <= MOST_RETRY_S else math.inf


def _chunk(delta: ChoiceDelta, like: ChatCompletionChunk | None = None) -> ChatCompletionChunk:
    """A chunk with one delta, and the rest of another."""
    choices = [Choice(delta=delta, index=0, finish_reason=None)]
    if like is not None:
        return like.model_copy(update={"choices": choices})
    return ChatCompletionChunk(id="", choices=choices, created=0, model="", object="chat.completion.chunk")
