"""One client of the adapter: Wyoming's events in, the node's speech out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import ValidationError

from agent_tts.client.connection import ConnectionLost, connect, http_url
from agent_tts.client.utterance import RemoteUtterance
from agent_tts.errors import BadMessage, SpeechError
from agent_tts.integrations.wyoming import info, wire
from agent_tts.integrations.wyoming.wire import WyomingEvent
from agent_tts.serve.routes.openai import VoiceList

IDLE_S = 300.0  # without an event, while nothing is spoken
WRITE_S = 10.0  # for a client to read what was sent
VOICES_S = 5.0  # for the node's list of voices
BUFFER_BYTES = 16 << 20  # the longest context of a node

Send = Callable[[WyomingEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """The node that speaks."""

    url: str
    key: str | None


class SpokenText:
    """A text that is spoken while it comes. Made by `open`; its maker must `close` it."""

    def __init__(self, stack: AsyncExitStack, speech: RemoteUtterance, sender: asyncio.Task[None]) -> None:
        # The connection to the node.
        self._stack = stack
        self._speech = speech
        # Sends the audio. Awaited by `finish`, cancelled and awaited by `close`.
        self._sender = sender

    @classmethod
    async def open(cls, target: Target, send: Send, data: dict[str, Any]) -> SpokenText:
        """Begin to speak, with the voice of an event's data, on a connection of its own.

        Raises:
            SpeechError: the node cannot be reached, or refuses.
        """
        async with AsyncExitStack() as stack:
            link = connect(target.url, api_key=target.key, buffer_bytes=BUFFER_BYTES, **info.session(data))
            try:
                speech = (await stack.enter_async_context(link)).begin()
            except TimeoutError:
                raise ConnectionLost("the node does not answer in time") from None
            sender = asyncio.create_task(_send_sound(speech, send), name="wyoming sender")
            return cls(stack.pop_all(), speech, sender)

    def write(self, data: dict[str, Any]) -> None:
        """More text.

        Raises:
            BadMessage: the event has none.
        """
        if not isinstance(text := data.get("text"), str):
            raise BadMessage("text: is a string")
        self._speech.write(text)

    async def finish(self) -> None:
        """End the text; returns when all audio was sent.

        Raises:
            SpeechError: the text could not be spoken.
        """
        self._speech.end()
        await self._sender

    async def close(self) -> None:
        """Stop the speech and disconnect from the node."""
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        await self._stack.aclose()


async def _send_sound(speech: RemoteUtterance, send: Send) -> None:
    await send(WyomingEvent("audio-start", info.FORMAT))
    async for pcm in speech:
        await send(WyomingEvent("audio-chunk", info.FORMAT, pcm))
    await send(WyomingEvent("audio-stop"))


class Conversation:
    """A connection; it speaks one text at a time."""

    def __init__(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._target = target
        self._reader = reader
        self._writer = writer
        # The text that comes in chunks now; otherwise None.
        self._text: SpokenText | None = None

    async def run(self) -> None:
        """Serve until the client leaves or an error, which is sent to it. Cancelling it stops all speech.

        Raises:
            TimeoutError, OSError: the client does not read or write, or is gone.
        """
        try:
            while (event := await self._next()) is not None:
                await self._dispatch(event)
        except SpeechError as error:
            await self._send(WyomingEvent("error", {"text": error.message, "code": error.code}))
        finally:
            await self._close_text()

    async def _next(self) -> WyomingEvent | None:
        async with asyncio.timeout(IDLE_S):
            return await wire.read(self._reader)

    async def _dispatch(self, event: WyomingEvent) -> None:
        match event.type:
            case "describe":
                await self._send(WyomingEvent("info", info.describe(await self._voices())))
            case "ping":
                await self._send(WyomingEvent("pong", event.data))
            case "synthesize" if self._text is None:  # during chunks it repeats their text
                self._text = await SpokenText.open(self._target, self._send, event.data)
                self._text.write(event.data)
                await self._finish_text()
            case "synthesize-start":
                await self._close_text()
                self._text = await SpokenText.open(self._target, self._send, event.data)
            case "synthesize-chunk" if self._text is not None:
                self._text.write(event.data)
            case "synthesize-stop" if self._text is not None:
                await self._finish_text()
                await self._send(WyomingEvent("synthesize-stopped"))

    async def _finish_text(self) -> None:
        assert self._text is not None
        await self._text.finish()
        await self._close_text()

    async def _close_text(self) -> None:
        text, self._text = self._text, None
        if text is not None:
            await text.close()

    async def _send(self, event: WyomingEvent) -> None:
        self._writer.write(wire.write(event))
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()

    async def _voices(self) -> VoiceList:
        headers = {} if self._target.key is None else {"Authorization": f"Bearer {self._target.key}"}
        try:
            async with httpx.AsyncClient(headers=headers, timeout=VOICES_S) as client:
                answer = await client.get(http_url(self._target.url) + "/v1/audio/voices")
                return VoiceList.model_validate_json(answer.raise_for_status().content)
        except (httpx.HTTPError, ValidationError) as error:
            raise ConnectionLost("the node does not list its voices") from error
