"""The response that speaks: an audio file, or events with its bytes, sent while it is made."""

from __future__ import annotations

import asyncio
import base64
import contextlib

from loguru import logger
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agent_tts.errors import SlowConsumer, SpeechError, from_code
from agent_tts.events import SAMPLE_RATE, Audio, Finished, SpeechOptions, Started
from agent_tts.serve import openai
from agent_tts.serve.encode import CONTENT_TYPES, FileEncoder
from agent_tts.serve.guard import Client
from agent_tts.serve.metrics import ContextMeter
from agent_tts.serve.node import Node
from agent_tts.serve.writer import Writer
from agent_tts.speech.session import Speech

CARRIER = "http"


class SpeechResponse(Response):
    """Speaks one request.

    Nothing is sent before the first frame, so that whatever fails until then becomes an error response. Later, a
    failure ends `sse` with an `error` event, and cuts the connection under `audio`: with a clean end a part would pass
    for the whole. A client that leaves, or stops reading, stops the speech at once.
    """

    def __init__(self, node: Node, client: Client, request: openai.SpeechRequest, options: SpeechOptions) -> None:
        self._sse = request.stream_format == "sse"
        super().__init__(media_type="text/event-stream" if self._sse else CONTENT_TYPES[request.response_format])
        del self.headers["content-length"]  # known only at the end
        self.headers["Cache-Control"] = "no-store"
        self._node = node
        self._client = client
        self._request = request
        self._options = options

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
                meter.finished(speech.finished or Finished(speech.stream, "cancelled"))

    async def _speak(self, speech: Speech, meter: ContextMeter, writer: Writer, receive: Receive) -> None:
        watch = asyncio.create_task(_stop_when_gone(receive, speech, meter), name=f"client of stream {speech.stream}")
        try:
            meter.text()
            speech.write(self._request.input)
            speech.end()
            with contextlib.closing(FileEncoder(self._request.response_format)) as file:
                await self._send(speech, meter, writer, file)
        finally:
            watch.cancel()
            await asyncio.gather(watch, speech.cancel(), return_exceptions=True)

    async def _send(self, speech: Speech, meter: ContextMeter, writer: Writer, file: FileEncoder) -> None:
        """Send everything, from the status line on."""
        started = False
        frames = 0
        while (event := await speech.next()) is not None:
            if isinstance(event, Started):
                meter.started(event.queue_ms)
            if not isinstance(event, Audio | Finished):
                continue
            failure = _failure(event)
            if not started and failure is not None:
                raise failure
            if isinstance(event, Finished) and event.reason == "cancelled":
                return  # the client has left
            if not started:
                started = True
                headers = self.raw_headers
                await writer.write({"type": "http.response.start", "status": self.status_code, "headers": headers})
            if isinstance(event, Audio):
                frames += 1
                meter.audio(len(event.pcm) * 500 / SAMPLE_RATE)
                await self._body(writer, file.encode(event.pcm))
                # Frames that wait already would be encoded in one go, which others would hear.
                await asyncio.sleep(0)
            elif failure is None:
                await self._body(writer, file.close())
                await self._end(writer, openai.AudioDone(usage=openai.Usage.of(self._request.input, frames)))
            elif self._sse:
                await self._end(writer, openai.AudioError.of_error(failure))
            # A failed audio file is left without its end: the server closes the connection.

    async def _body(self, writer: Writer, data: bytes) -> None:
        if data and self._sse:
            data = openai.server_sent(openai.AudioDelta(audio=base64.b64encode(data).decode()))
        if data:
            await writer.write({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self, writer: Writer, event: openai.AudioDone | openai.AudioError) -> None:
        await writer.write({"type": "http.response.body", "body": openai.server_sent(event) if self._sse else b""})


def _failure(event: Audio | Finished) -> SpeechError | None:
    if isinstance(event, Finished) and event.code is not None:
        return from_code(event.code, event.message, event.retry_after_ms)
    return None


async def _stop_when_gone(receive: Receive, speech: Speech, meter: ContextMeter) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if speech.finished is None:
        meter.cancelled()
        speech.stop()
