"""LiveKit's TTS class on a node, and its streams: text in as the LLM writes it, audio and timed words out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, Self
from weakref import WeakSet

from livekit.agents import APIConnectionError, APIConnectOptions, APIStatusError, APITimeoutError, tts, utils
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, TimedString

from agent_tts.client.connection import DEFAULT_URL, ConnectionLost
from agent_tts.client.moving import AnyConnection, Target
from agent_tts.client.resuming import ResumableUtterance
from agent_tts.client.utterance import RemoteUtterance
from agent_tts.errors import SettingsError, SpeechError, Starved
from agent_tts.integrations.pool import Pool
from agent_tts.messages import Audio, Finished, Word, Words
from agent_tts.protocol.options import SessionConfig, replaced_by
from agent_tts.speech.words.due_words import DueWords
from agent_tts.speech.words.spacing import Spacing
from agent_tts.system.private_names import require

Rate = Literal[8_000, 16_000, 24_000, 48_000]


Speech = RemoteUtterance | ResumableUtterance

MIME_TYPE = "audio/pcm"
# A pause of the LLM of this share of the node's `text_idle_s` ends a context; the next token begins another. The node
# answers `starved` to a shorter one only if others wait for the slot.
PAUSE_SHARE = 2 / 3
# Audio of text without words, such as an emoji: LiveKit reports a reply without audio as a failure.
SILENCE_S = 0.02

_OF_BOTH = "_acquire_time _conn_options _connection_reused _run _tts"
_NAMES: dict[type, str] = {
    tts.SynthesizeStream: f"_input_ch _mark_started {_OF_BOTH}",
    tts.ChunkedStream: f"_input_text {_OF_BOTH}",
    tts.TTS.Markup: "_provider_key",
}


class SynthesizeStream(tts.SynthesizeStream):
    """A reply that is spoken while it is written.

    It takes a connection and a slot at its first word. Closing it stops the speech at once.
    """

    def __init__(self, owner: TTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, conn_options=conn_options)
        self._pool, self._session = owner._pool, owner._session
        owner._streams.add(self)

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        rate = self._tts.sample_rate
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=rate, num_channels=1, mime_type=MIME_TYPE, stream=True
        )
        audio_ms, more = 0, True
        while more and (text := await self._first_words()):
            async with _context(self) as (node, speech):
                if not output_emitter.num_segments:
                    # The context's name in the node's log, here for LiveKit's traces.
                    output_emitter.start_segment(segment_id=f"{node.info.session_id}/{speech.context_id}")
                transcript = Transcript(audio_ms)
                pause_s = PAUSE_SHARE * node.info.limits["text_idle_s"]
                self._mark_started()
                writer = asyncio.create_task(self._write(text, speech, transcript, pause_s), name="writer of a reply")
                try:
                    ms, starved = await _listen(speech, output_emitter, transcript, rate, self._conn_options.timeout)
                    audio_ms += ms
                    more = starved or await writer
                finally:
                    await utils.aio.cancel_and_wait(writer)
        if output_emitter.num_segments and not audio_ms:
            output_emitter.push(_silence(rate))

    async def _first_words(self) -> str:
        """Text up to the first that is not white space; "" when the input ends before. Cancelling loses it."""
        text = ""
        async for item in self._input_ch:
            if isinstance(item, str):
                text += item
                if not text.isspace():
                    return text
        return ""

    async def _write(self, text: str, speech: Speech, transcript: Transcript, pause_s: float) -> bool:
        """Send text until a flush, the end of the input or a pause; True for a pause."""
        try:
            while True:
                transcript.text.write(text)
                speech.write(text)
                async with asyncio.timeout(pause_s):
                    item = await self._input_ch.recv()
                if not isinstance(item, str):
                    return False  # LiveKit takes no text after a flush
                text = item
        except TimeoutError:
            return True
        except utils.aio.ChanClosed:
            return False
        finally:
            speech.end()


class ChunkedStream(tts.ChunkedStream):
    """A complete text, spoken unpaced. Closing it stops the speech at once."""

    def __init__(self, owner: TTS, text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, input_text=text, conn_options=conn_options)
        self._pool, self._session = owner._pool, {**owner._session, "lead_ms": None}
        owner._streams.add(self)

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        rate, text = self._tts.sample_rate, self._input_text
        output_emitter.initialize(request_id=utils.shortuuid(), sample_rate=rate, num_channels=1, mime_type=MIME_TYPE)
        if not text.strip():
            return
        async with _context(self) as (_, speech):
            transcript = Transcript()
            transcript.text.write(text)
            speech.write(text)
            speech.end()
            audio_ms, _ = await _listen(speech, output_emitter, transcript, rate, self._conn_options.timeout)
            if not audio_ms:
                output_emitter.push(_silence(rate))


class Transcript:
    """The words of one context by the rule of `DueWords`, with the white space of its text and without its markup."""

    def __init__(self, start_ms: float = 0.0) -> None:
        # The context's first sample, from the reply's first.
        self._start_ms = start_ms
        self.known, self.text = DueWords(), Spacing()

    def due(self, audio_ms: float) -> list[TimedString]:
        """See `DueWords.due`; each word comes with the white space before it."""
        return [self._timed(word, word.start_ms, word.end_ms) for word in self.known.due(audio_ms)]

    def finish(self, audio_ms: float) -> list[TimedString]:
        """What is left, within `audio_ms`: all text is spoken. Nothing where the node sent no words."""
        rest = self.known.rest()
        left = [self._timed(word, min(word.start_ms, audio_ms), min(word.end_ms, audio_ms)) for word in rest]
        if tail := self.text.rest():
            left.append(TimedString(tail))
        return left

    def _timed(self, word: Word, start_ms: float, end_ms: float) -> TimedString:
        text = self.text.before(word) + word.word
        return TimedString(text, (self._start_ms + start_ms) / 1_000, (self._start_ms + end_ms) / 1_000)


@asynccontextmanager
async def _context(stream: SynthesizeStream | ChunkedStream) -> AsyncIterator[tuple[AnyConnection, Speech]]:
    """A context for a reply or a part of it, stopped at the end of the block; errors are raised as LiveKit's."""
    asked = time.perf_counter()
    with api_errors():
        node, stream._connection_reused = await stream._pool.usable(stream._conn_options.timeout)
        stream._acquire_time = time.perf_counter() - asked
        async with node.begin(**stream._session) as speech:
            yield node, speech


@contextmanager
def api_errors() -> Iterator[None]:
    """Raise a node's errors as LiveKit's, which say whether to retry or fall back to another service.

    `at_capacity`, `rate_limited`, `draining` and `engine_lost` may be retried; a refused voice, language or key not.

    Raises:
        APIConnectionError: the node cannot be reached, or the connection was lost.
        APITimeoutError: the node did not answer in time.
        APIStatusError: the node refused; `body` has its `code` and `retry_after_ms`.
    """
    try:
        yield
    except ConnectionLost as error:
        raise APIConnectionError(error.message) from error
    except SpeechError as error:
        body = {"code": error.code, "retry_after_ms": error.retry_after_ms}
        raise APIStatusError(error.message, status_code=error.status, body=body) from error
    except TimeoutError as error:
        raise APITimeoutError("the node did not answer in time") from error


async def _listen(
    speech: Speech, emitter: tts.AudioEmitter, transcript: Transcript, rate: int, timeout_s: float
) -> tuple[int, bool]:
    """Push a context's audio, and each word with it, to its end; returns milliseconds of audio, and whether it starved.

    All text of a starved context was spoken; later text needs another. Raises `TimeoutError` when the context got no
    slot and no refusal within `timeout_s`.
    """
    async with asyncio.timeout(timeout_s):
        await asyncio.shield(speech.started)
    audio_ms = 0
    try:
        async for event in speech.events():
            match event:
                case Words(kind=kind, words=words):
                    transcript.known.learn(words, final=kind == "aligned")
                case Audio(payload=payload, first_sample=first):
                    audio_ms = round((first + len(payload) // 2) * 1_000 / rate)
                    emitter.push_timed_transcript(transcript.due(audio_ms))
                    emitter.push(payload)
                case Finished(reason=reason):
                    audio_ms = event.audio_ms
                    if reason == "end":
                        emitter.push_timed_transcript(transcript.finish(audio_ms))
    except Starved:
        emitter.push_timed_transcript(transcript.finish(audio_ms))
        return audio_ms, True
    return audio_ms, False


def _silence(rate: int) -> bytes:
    return bytes(2 * round(SILENCE_S * rate))


class TTS(tts.TTS[Literal["metrics_collected"]]):
    """A node's speech for LiveKit's agents.

    Replies share connections to the node; `prewarm` makes the first. An interruption closes its reply's stream, which
    stops that context only. With `tts.FallbackAdapter`, `max_retry_per_tts=0` uses another service as soon as the
    node is at capacity.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        moves: bool = False,
        sample_rate: Rate = 24_000,
        **session: Any,
    ) -> None:
        """Connects to nothing yet.

        Args:
            url: `http(s)://`, `ws(s)://`, or `host:port`.
            api_key: sent as `Authorization: Bearer`.
            moves: as for `agent_tts.connect`; a reply then goes on at another node when its own is lost.
            sample_rate: Hz.
            session: how to speak: `model`, `voice`, `language`, `instructions`, `speed`, `pitch`, `seed`, `lead_ms`,
                `timestamps`, `sampling={...}` and the other fields of protocol.md; the default is the node's choice.

        Raises:
            SettingsError: a field is unknown or not allowed, the url is invalid, or LiveKit's version lacks a name.
        """
        session = _checked({"output": {"sample_rate": sample_rate}}, session)
        require("livekit-agents", _NAMES)
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=session.get("timestamps") != "none"),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._pool = Pool(Target(url, api_key, moves))
        # Session of new replies. Replaced, never changed: running replies keep theirs.
        self._session = session
        # Running replies; closed by `aclose`.
        self._streams: WeakSet[tts.SynthesizeStream | tts.ChunkedStream] = WeakSet()

    class Markup(tts.TTS.Markup):
        """Of LiveKit's expressive mode: what it teaches the LLM, and the tags that it makes of that."""

        def _provider_key(self) -> str:
            return "cartesia"

    @property
    def model(self) -> str:
        """The requested model, or the node's; "unknown" before the first connection."""
        info = self._pool.info
        return self._session.get("model") or (info and (info.model or info.engine)) or "unknown"

    @property
    def provider(self) -> str:
        return "agent-tts"

    def update_options(self, **session: Any) -> None:
        """Change the session of later replies; None restores the node's choice.

        Raises `SettingsError`, and changes nothing, when an option is unknown or not allowed.
        """
        self._session = _checked(self._session, session)

    def synthesize(self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> ChunkedStream:
        return ChunkedStream(self, text, conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        return SynthesizeStream(self, conn_options)

    def prewarm(self) -> None:
        """Connect in the background, so that the first reply does not wait for it."""
        self._pool.prewarm()

    async def __aenter__(self) -> Self:
        return self

    async def aclose(self) -> None:
        """Stop every reply and close the connections, within some seconds. Idempotent."""
        await asyncio.gather(*(stream.aclose() for stream in list(self._streams)))
        await self._pool.close()


def _checked(session: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`session` updated by `changes`; None removes a field. Raises `SettingsError` for what is not allowed."""
    if "output" in changes:
        raise SettingsError("LiveKit takes pcm_s16le: pass sample_rate to TTS(...) instead of output")
    merged = session | changes | replaced_by(changes)
    new = {name: value for name, value in merged.items() if value is not None}
    try:
        SessionConfig().merged(new, max_lead_ms=60_000)
    except SpeechError as error:
        raise SettingsError(error.message) from None
    return new
