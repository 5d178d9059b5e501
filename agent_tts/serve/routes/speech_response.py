"""The streamed response of a speech request: an audio file, or events with its bytes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from loguru import logger
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from agent_tts.engine_info import SAMPLE_RATE
from agent_tts.errors import SlowConsumer, SpeechError, TextTooLong, cut_short
from agent_tts.messages import Audio, Finished, Words
from agent_tts.options import SpeechOptions
from agent_tts.protocol import v1 as protocol
from agent_tts.serve import openai
from agent_tts.serve.access.fair_queue import Flow
from agent_tts.serve.access.guard import Client
from agent_tts.serve.node import Node
from agent_tts.serve.session import SLICE_CHARS
from agent_tts.serve.transports.writer import Writer, disconnected
from agent_tts.sound.provenance import HEADERS
from agent_tts.speech.audio.encoding import Chunk, make_encoder
from agent_tts.speech.audio.files import WAV_MARK, FileEncoder, wav_header
from agent_tts.speech.routing import Resolved
from agent_tts.speech.utterance import Listener, Utterance, WordsMode

TRANSPORT = "http"  # in metrics
MAX_WHOLE = 8 << 20  # bytes of audio that is sent when it is complete: three minutes of WAV, nine of MP3
SENT_AT_ONCE = 65_536  # bytes: TLS encrypts them in a fraction of a millisecond
PCM_BYTES_PER_S = 2 * SAMPLE_RATE


# Makes of a whole file the one that is sent.
Seal = Callable[[bytes], Awaitable[bytes]]


class Body:
    """The body of one response, made while audio arrives: a file, or events of a dialect. Pure."""

    def words(self, words: Words[str]) -> None:
        """Word times, which come before their audio; called only if words were requested."""

    def audio(self, pcm: bytes) -> bytes:
        """The next piece of audio: pcm_s16le, 24 kHz, mono."""
        raise NotImplementedError

    def turn(self) -> None:
        """The next text begins; called before each of several but the first."""

    def end(self) -> bytes:
        """The end of the audio."""
        raise NotImplementedError

    def error(self, error: SpeechError) -> bytes | None:
        """A failure after the start. None cuts the connection: a regular end would mark a partial file as complete."""
        return None

    def close(self) -> None:
        """Free all resources. Idempotent."""


class FileBody(Body):
    """The plain file."""

    def __init__(self, format: str) -> None:
        self._file = FileEncoder(format)

    def audio(self, pcm: bytes) -> bytes:
        return self._file.encode(pcm)

    def end(self) -> bytes:
        return self._file.close()

    def close(self) -> None:
        self._file.drop()


class AudioBody(Body):
    """Audio without times, after a WAV header if `is_wav`; see `make_encoder` for the other arguments."""

    def __init__(self, encoding: str, sample_rate: int, bit_rate: int | None = None, *, is_wav: bool = False) -> None:
        self._encoder = make_encoder(encoding, sample_rate, bit_rate)
        # What precedes the first bytes of audio.
        self._head = wav_header(None, sample_rate, encoding) if is_wav else b""

    def audio(self, pcm: bytes) -> bytes:
        return self._joined(self._encoder.encode(pcm))

    def end(self) -> bytes:
        return self._joined(self._encoder.flush())

    def _joined(self, chunks: list[Chunk]) -> bytes:
        head, self._head = self._head, b""
        return head + b"".join(payload for payload, _ in chunks)


class WholeBody(FileBody):
    """The file, given when it is complete, and in memory until then: a WAV file with its length."""

    def __init__(self, format: str) -> None:
        self._is_wav = format == "wav"
        super().__init__("pcm" if self._is_wav else format)
        self._pieces: list[bytes] = []
        self._size = self._samples = 0

    def audio(self, pcm: bytes) -> bytes:
        """Raises `TextTooLong`."""
        self._pieces.append(super().audio(pcm))
        self._size += len(self._pieces[-1])
        self._samples += len(pcm) // 2
        if self._size > MAX_WHOLE:
            what = f"a file that is sent when it is complete has at most {MAX_WHOLE} bytes"
            raise TextTooLong(f"{what}: send a shorter text, or ask for MP3")
        return b""

    def end(self) -> bytes:
        file = b"".join([*self._pieces, super().end()])
        return wav_header(self._samples) + file + WAV_MARK if self._is_wav else file


class EventBody(FileBody):
    """The file's bytes in OpenAI's `speech.audio.delta` events, with an event for the end and for an error."""

    def __init__(self, format: str, text: str) -> None:
        super().__init__(format)
        self._text = text
        self._frames = 0

    def audio(self, pcm: bytes) -> bytes:
        self._frames += 1
        return _delta(super().audio(pcm))

    def end(self) -> bytes:
        # An input token is 4 bytes of text (an estimate), an output token is 80 ms of audio.
        tokens = -(-len(self._text.encode()) // 4)
        usage = {"input_tokens": tokens, "output_tokens": self._frames, "total_tokens": tokens + self._frames}
        return _delta(super().end()) + _event("speech.audio.done", usage=usage)

    def error(self, error: SpeechError) -> bytes | None:
        return _event("error", **openai.error_body(error))


def _delta(data: bytes) -> bytes:
    return _event("speech.audio.delta", audio=base64.b64encode(data).decode()) if data else b""


def _event(type_: str, **fields: Any) -> bytes:
    return server_sent([protocol.dump(protocol.build(type_, **fields))])


def server_sent(events: Iterable[str]) -> bytes:
    """Events of a `text/event-stream`."""
    return b"".join(b"data: " + event.encode() + b"\n\n" for event in events)


@dataclass(eq=False, repr=False)
class SpeechResponse(Response):
    """Speaks one text, or several one after another.

    Nothing is sent before the first frame, so that earlier failures become an error response. Speech stops at once when
    the client disconnects or stops reading. Making one raises the errors of `SpeechService.resolve`.
    """

    node: Node
    client: Client
    text: str  # that is spoken
    options: SpeechOptions
    content_type: str
    make_body: Callable[[], Body]  # called when the request is open
    words: WordsMode = "none"
    seal: Seal | None = None  # is applied to the whole file, which is then given at its end
    ends_aside: bool = False  # the end of the body takes milliseconds: it is made in a thread, as with a seal
    then: Sequence[tuple[str, Resolved]] = ()  # texts that wait for the end of the one before

    def __post_init__(self) -> None:
        super().__init__(headers={"Cache-Control": "no-store", **HEADERS}, media_type=self.content_type)
        del self.headers["content-length"]  # not known yet
        self.resolved = self.node.service.resolve(self.options)
        self._then = deque(self.then)
        self._started = False  # whether the status line was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak; raises a failure before the first frame. Cancelling this stops the speech and frees the slot."""
        try:
            writer = Writer(scope, send, self.node.settings.timeouts)
        except ClientDisconnected:
            return
        refused = self.node.metrics.refused
        with contextlib.ExitStack() as admitted:
            try:
                owner = admitted.enter_context(await self.node.guard.admit(self.client))
                if self.seal is not None:
                    admitted.enter_context(await self.node.guard.place("whole files", self.client))
                self.node.metrics.usage.check(owner, sum(len(text) for text, _ in self._then) + len(self.text))
                utterance = self._open(self.resolved, owner)
            except SpeechError as error:
                refused.labels(error.code).inc()
                raise
            try:
                with contextlib.closing(self.make_body()) as body:
                    await self._speak(utterance, writer, receive, body)
                    while self._then and utterance.done is not None and utterance.done.reason == "end":
                        self.text, resolved = self._then.popleft()
                        body.turn()
                        utterance = self._open(resolved, owner)
                        await self._speak(utterance, writer, receive, body)
            except SpeechError as error:
                if not (self._started or isinstance(error, SlowConsumer)):
                    raise
                refused.labels(error.code).inc()
                logger.warning("http: {}, connection cut", error.code)
                writer.cut()
                await disconnected(receive)  # uvicorn would log a missing end

    def _open(self, resolved: Resolved, owner: int) -> Utterance:
        metrics, how = self.node.metrics, Listener(words=self.words)
        return metrics.open(self.node.service, TRANSPORT, resolved, owner, how, characters=len(self.text))

    async def _speak(self, utterance: Utterance, writer: Writer, receive: Receive, body: Body) -> None:
        watch = asyncio.create_task(_stop_when_gone(receive, utterance), name=f"client of {utterance.context_id}")
        try:
            await self._send(utterance, writer, body)
        finally:
            watch.cancel()
            await asyncio.gather(watch, utterance.cancel(), return_exceptions=True)

    async def _send(self, utterance: Utterance, writer: Writer, body: Body) -> None:
        held_s = 0.0  # audio that waits in the encoder
        encoder = Flow(self.node.fair_queue.share(self.client.key_id))
        rest = deque(self.text[at : at + SLICE_CHARS] for at in range(0, len(self.text) or 1, SLICE_CHARS))
        while True:
            if rest and not utterance.stopped:
                async with encoder:
                    utterance.write(rest.popleft())
                    if not rest:
                        utterance.end()
                event = utterance.poll()  # `next` waits for more than that it has started
            elif (event := await utterance.next()) is None:
                return
            match event:
                case Words() as event:
                    async with encoder:
                        body.words(event)
                case Audio(payload=pcm) if pcm:
                    if self.seal is None:
                        await self._start(writer)
                    async with encoder:
                        data = body.audio(pcm)
                    held_s += len(pcm) / PCM_BYTES_PER_S
                    if data:
                        await writer.write({"type": "http.response.body", "body": data, "more_body": True}, held_s)
                        held_s = 0.0
                case Finished(reason="cancelled"):
                    return  # the client has disconnected
                case Finished(reason=reason, audio_ms=audio_ms):
                    error = cut_short(audio_ms) if reason == "length" else utterance.error
                    if error is None and self._then:
                        return
                    if error is not None and not self._started:
                        raise error
                    if error is not None:
                        last = body.error(error)
                    else:
                        aside = self.ends_aside or self.seal is not None
                        last = await asyncio.to_thread(body.end) if aside else body.end()
                    if self.seal is not None and last:
                        last = await self.seal(last)
                    await self._start(writer)
                    if last is None:  # the server closes the connection
                        if not writer.is_framed:
                            await writer.finish()
                            writer.cut()
                        return
                    for at in range(0, len(last), SENT_AT_ONCE):
                        piece = last[at : at + SENT_AT_ONCE]
                        message = {"type": "http.response.body", "body": piece, "more_body": True}
                        await writer.write(message, held_s * len(piece) / len(last))
                    await writer.finish()
                    await writer.write({"type": "http.response.body"})
                    return

    async def _start(self, writer: Writer) -> None:
        if not self._started:
            self._started = True
            await writer.write({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


async def _stop_when_gone(receive: Receive, utterance: Utterance) -> None:
    await disconnected(receive)
    utterance.stop()
