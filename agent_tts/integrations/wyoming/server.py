"""Home Assistant's clients, served from a node: Wyoming's events in, the node's speech out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
from loguru import logger
from pydantic import ValidationError

from agent_tts import __version__
from agent_tts.client.connection import ConnectionLost, http_url
from agent_tts.client.moving import Target, connect
from agent_tts.client.utterance import RemoteUtterance
from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import BadMessage, SettingsError, SpeechError
from agent_tts.integrations.wyoming import wire
from agent_tts.integrations.wyoming.wire import WyomingEvent
from agent_tts.serve.openai import VoiceList
from agent_tts.serve.token_bucket import TokenBucket
from agent_tts.serve.transports import tcp

MAX_CLIENTS = 64  # of more, the one that has done nothing for the longest gives way
# Events of one client, a KiB of one counted as another; those that ask the node for something count as `ASKING`. Faster
# ones wait in the client. A model writes about 100 tokens a second.
EVENTS_PER_S, EVENTS_BURST = 200, 400
ASKING = {"describe": 20, "synthesize": 20, "synthesize-start": 20}
FRESH_S = 1.0  # for which the node's voices are told again
IDLE_S = 300.0  # without an event, while nothing is spoken
WRITE_S = 10.0  # for a client to read what was sent
VOICES_S = 5.0  # for the node's list of voices
BUFFER_BYTES = 16 << 20  # the longest context of a node

FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}  # of all audio: pcm_s16le


class WyomingConnection:
    """A connection; it speaks one text at a time."""

    def __init__(
        self, node: WyomingServer, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._node = node
        self._target = target
        self._reader = reader
        self.writer = writer
        self._clock = asyncio.get_running_loop().time
        self._allowed = TokenBucket(EVENTS_PER_S, EVENTS_BURST, self._clock())
        # When it last sent or got something.
        self._active_at = self._clock()
        # What is spoken now, and the task that sends its audio; otherwise None. The stack ends both.
        self._speech: tuple[RemoteUtterance, asyncio.Task[None]] | None = None
        self._stack = AsyncExitStack()

    async def run(self) -> None:
        """Serve until the client leaves or an error, which is sent to it. Cancelling it stops all speech.

        Raises `TimeoutError` or `OSError` when the client does not read or write, or is gone.
        """
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    event = await wire.read(self._reader)
                if event is None:
                    return
                cost = ASKING.get(event.type, 1) + event.size / 1_024
                early_s = self._allowed.take(self._clock(), cost)
                if early_s and tcp.has_left(self.writer.get_extra_info("socket")):
                    return
                await asyncio.sleep(early_s)
                self._active_at = self._clock()
                await self._dispatch(event)
        except SpeechError as error:
            await self._send(WyomingEvent("error", {"text": error.message, "code": error.code, **error.again}))
        finally:
            await self._close_speech()

    @property
    def standing(self) -> tuple[bool, float]:
        """The least gives way first: it speaks nothing, and has done nothing for the longest."""
        return self._speech is not None, self._active_at

    async def _dispatch(self, event: WyomingEvent) -> None:
        match event.type:
            case "describe":
                await self._send(await self._node.described())
            case "ping":
                await self._send(WyomingEvent("pong", event.data))
            case "synthesize" if self._speech is None:  # during chunks it repeats their text
                await self._open_speech(event.data)
                self._write(event.data)
                await self._finish_speech()
            case "synthesize-start":
                await self._close_speech()
                await self._open_speech(event.data)
            case "synthesize-chunk":
                self._write(event.data)
            case "synthesize-stop" if self._speech is not None:
                await self._finish_speech()
                await self._send(WyomingEvent("synthesize-stopped"))

    async def _open_speech(self, data: dict[str, Any]) -> None:
        """Speak with the voice of an event's data, on a connection of its own."""
        link = connect(self._target.url, api_key=self._target.api_key, buffer_bytes=BUFFER_BYTES, **_session(data))
        try:
            speech = (await self._stack.enter_async_context(link)).begin()
        except TimeoutError:
            raise ConnectionLost("the node does not answer in time") from None
        sender = asyncio.create_task(self._send_sound(speech), name="wyoming sender")
        self._stack.push_async_callback(asyncio.wait, [sender])
        self._stack.callback(sender.cancel)
        self._speech = speech, sender

    def _write(self, data: dict[str, Any]) -> None:
        """Speak more text; raises `BadMessage` where an event's data has none."""
        if self._speech is None:
            return
        if not isinstance(text := data.get("text"), str):
            raise BadMessage("text: is a string")
        self._speech[0].write(text)

    async def _finish_speech(self) -> None:
        assert self._speech is not None
        self._speech[0].end()
        await self._speech[1]
        await self._close_speech()

    async def _close_speech(self) -> None:
        self._speech = None
        await self._stack.aclose()

    async def _send_sound(self, speech: RemoteUtterance) -> None:
        await self._send(WyomingEvent("audio-start", FORMAT))
        async for pcm in speech:
            await self._send(WyomingEvent("audio-chunk", FORMAT, pcm))
        await self._send(WyomingEvent("audio-stop"))

    async def _send(self, event: WyomingEvent) -> None:
        self.writer.write(wire.write(event))
        async with asyncio.timeout(WRITE_S):
            await self.writer.drain()
        self._active_at = self._clock()


def _info(voices: VoiceList) -> dict[str, Any]:
    """Data of the `info` event: one program with every voice of the node, the default first."""
    ordered = sorted(voices.voices, key=lambda voice: voice.name != voices.default)
    told = [_artifact(voice.name, voice.description) | {"languages": voice.languages} for voice in ordered]
    program = _artifact("agent-tts", "speech while the text is written")
    return {"tts": [program | {"supports_synthesize_streaming": True, "voices": told}]}


def _session(data: dict[str, Any]) -> dict[str, Any]:
    """Session fields of a context for an event's data: a voice by its name, or a language."""
    voice = data.get("voice")
    asked = voice if isinstance(voice, dict) else {}
    return {
        "voice": asked.get("name"),
        "language": None if asked.get("name") else asked.get("language"),
        "timestamps": "none",
        "lead_ms": None,  # Home Assistant buffers
    }


def _artifact(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "attribution": {"name": "agent_tts", "url": "https://pypi.org/project/agent-tts/"},
        "installed": True,
        "description": description or name,
        "version": __version__,
    }


async def serve(uri: str, target: Target) -> None:
    """Serve Home Assistant from a node until SIGTERM, or until it is cancelled. The node may start later.

    Raises `SettingsError`: the address cannot be used.
    """
    stopped = asyncio.Event()
    with contextlib.suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with WyomingServer(target) as server:
        print(f"{await server.listen(uri)} speaks with {target.url}", flush=True)
        await stopped.wait()


class WyomingServer:
    """Serves Wyoming's clients from a node. An async context manager."""

    def __init__(self, target: Target) -> None:
        self._target = target
        # What serves each client; cancelled and awaited by `__aexit__`.
        self._clients: dict[asyncio.Task[None], WyomingConnection] = {}
        # The node's voices, until when they are told again, and what is held while they are asked for. To make a client
        # takes 0.1 s, so there is one.
        self._info: tuple[WyomingEvent, float] | None = None
        self._asking = asyncio.Lock()
        headers = {} if target.api_key is None else {"Authorization": f"Bearer {target.api_key}"}
        self._http = httpx.AsyncClient(headers=headers, timeout=VOICES_S)
        # It is None before it listens.
        self._server: asyncio.Server | None = None

    async def listen(self, uri: str) -> str:
        """Take clients; returns the address, with the chosen port for port 0. Raises `SettingsError`."""
        host, port = parse(uri)
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=wire.MAX_LINE)
        except OSError as error:
            raise SettingsError(f"cannot listen on {uri}: {error.strerror or 'no such host'}") from error
        chosen = self._server.sockets[0].getsockname()[1]
        return f"tcp://[{host}]:{chosen}" if ":" in host else f"tcp://{host}:{chosen}"

    async def __aenter__(self) -> WyomingServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._http.aclose()

    async def described(self) -> WyomingEvent:
        """The node's voices, as of `FRESH_S` ago at most: clients may ask for them at any rate."""
        async with self._asking:
            clock = asyncio.get_running_loop().time
            if self._info is None or clock() >= self._info[1]:
                try:
                    answer = await self._http.get(http_url(self._target.url) + "/v1/audio/voices")
                    voices = VoiceList.model_validate_json(answer.raise_for_status().content)
                except (httpx.HTTPError, ValidationError) as error:
                    raise ConnectionLost("the node does not list its voices") from error
                self._info = WyomingEvent("info", _info(voices)), clock() + FRESH_S
            return self._info[0]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here = {task: client for task, client in self._clients.items() if not task.cancelling()}
        if len(here) >= MAX_CLIENTS:
            oldest = min(here, key=lambda task: here[task].standing)
            here[oldest].writer.transport.abort()
            oldest.cancel()
        connection = WyomingConnection(self, self._target, reader, writer)
        task = asyncio.create_task(self._serve(connection), name="wyoming client")
        self._clients[task] = connection
        task.add_done_callback(self._clients.pop)

    async def _serve(self, connection: WyomingConnection) -> None:
        writer = connection.writer
        try:
            await connection.run()
            writer.close()
        except OSError:
            logger.debug("wyoming: a client has gone")
        except Exception as error:  # noqa: BLE001 - the edge of a task: only its client is disconnected
            logger.error("wyoming: {}", type(error).__name__)
        finally:
            if not writer.is_closing():
                writer.transport.abort()


def parse(uri: str) -> tuple[str, int]:
    """Host and port of `tcp://host:port`; raises `SettingsError` for another form."""
    with contextlib.suppress(ValueError):  # an invalid address or port
        parts = urlsplit(uri)
        if parts.scheme == "tcp" and parts.hostname and parts.port is not None:
            return parts.hostname, parts.port
    raise SettingsError("--uri is tcp://host:port, like tcp://0.0.0.0:10200")
