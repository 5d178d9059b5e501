"""The response that speaks: an audio file, or events with its bytes, sent while it is made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from loguru import logger
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent_tts.errors import SlowConsumer, SpeechError, from_code
from agent_tts.events import (
    SAMPLE_RATE,
    RequestAudio,
    RequestFinished,
    RequestStarted,
    RequestWords,
    SpeechOptions,
    WordTime,
)
from agent_tts.serve.guard import Client
from agent_tts.serve.node import Node
from agent_tts.serve.telemetry.metrics import ContextMeter
from agent_tts.serve.transports.writer import Writer
from agent_tts.speech.utterance import Utterance

CARRIER = "http"


class Body(Protocol):
    """The body of one response, made as the speech comes: a file, or the events of some vendor. Pure."""

    def words(self, words: tuple[WordTime, ...]) -> bytes:
        """The engine tells when words are spoken, before their audio."""
        ...

    def audio(self, pcm: bytes) -> bytes:
        """The next piece: pcm_s16le, 24 kHz."""
        ...

    def end(self) -> bytes:
        """All has been spoken."""
        ...

    def error(self, error: SpeechError) -> bytes | None:
        """It failed in the middle; None cuts the connection: with a clean end a part would pass for the whole."""
        ...

    def close(self) -> None:
        """Free what it holds, wherever it is. Idempotent."""
        ...


class SpeechResponse(Response):
    """Speaks one text.

    Nothing is sent before the first frame, so that whatever fails until then becomes an error response. A client that
    leaves, or stops reading, stops the speech at once.
    """

    def __init__(
        self,
        node: Node,
        client: Client,
        text: str,
        options: SpeechOptions,
        media_type: str,
        make_body: Callable[[], Body],
    ) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]  # known only at the end
        self.headers["Cache-Control"] = "no-store"
        self._node = node
        self._client = client
        self._text = text
        self._options = options
        # Called when the engine has its text: an encoder takes a while to be made.
        self._make_body = make_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak. Cancelling it stops the speech; the slot is free when it has ended.

        Raises:
            SpeechError: it failed before its first frame; nothing has been sent.
        """
        writer = Writer(scope, send, self._node.settings.timeouts.write_s)
        refused = self._node.metrics.refused
        with contextlib.ExitStack() as admitted:
            try:
                admitted.enter_context(self._node.guard.admit(self._client))
                speech = self._node.service.open(self._options)
            except SpeechError as error:
                refused.labels(error.code).inc()
                raise
            meter = self._node.metrics.context(CARRIER)
            try:
                await self._speak(speech, meter, writer, receive)
            except SlowConsumer as error:
                refused.labels(error.code).inc()
                logger.warning("http: slow_consumer, connection cut")
                writer.cut()
            finally:
                meter.finished(speech.finished or RequestFinished(speech.request_id, "cancelled"))

    async def _speak(self, speech: Utterance, meter: ContextMeter, writer: Writer, receive: Receive) -> None:
        watch = asyncio.create_task(
            _stop_when_gone(receive, speech, meter), name=f"client of stream {speech.request_id}"
        )
        try:
            meter.text()
            speech.write(self._text)
            speech.end()
            with contextlib.closing(self._make_body()) as body:
                await self._send(speech, meter, writer, body)
        finally:
            watch.cancel()
            await asyncio.gather(watch, speech.cancel(), return_exceptions=True)

    async def _send(self, speech: Utterance, meter: ContextMeter, writer: Writer, body: Body) -> None:
        """Send everything, from the status line on."""
        started = False
        held = b""  # of the body, until the next audio
        while (event := await speech.next()) is not None:
            if isinstance(event, RequestStarted):
                meter.started(event.queue_ms)
            if isinstance(event, RequestWords):
                held += body.words(event.words)
            if not isinstance(event, RequestAudio | RequestFinished):
                continue
            failure = _failure(event)
            if not started and failure is not None:
                raise failure
            if isinstance(event, RequestFinished) and event.reason == "cancelled":
                return  # the client has left
            if not started:
                started = True
                headers = self.raw_headers
                await writer.write({"type": "http.response.start", "status": self.status_code, "headers": headers})
            if isinstance(event, RequestAudio):
                meter.audio(len(event.pcm) * 500 / SAMPLE_RATE)
                data, held = held + body.audio(event.pcm), b""
                if data:
                    await writer.write({"type": "http.response.body", "body": data, "more_body": True})
                # Frames that wait already would be encoded in one go, which others would hear.
                await asyncio.sleep(0)
                continue
            last = body.end() if failure is None else body.error(failure)
            if last is not None:  # otherwise the response is left without its end: the server closes the connection
                await writer.write({"type": "http.response.body", "body": held + last})


def _failure(event: RequestAudio | RequestFinished) -> SpeechError | None:
    if isinstance(event, RequestFinished) and event.code is not None:
        return from_code(event.code, event.message, event.retry_after_ms)
    return None


async def _stop_when_gone(receive: Receive, speech: Utterance, meter: ContextMeter) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if speech.finished is None:
        meter.cancelled()
        speech.stop()
