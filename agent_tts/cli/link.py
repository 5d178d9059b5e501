"""Where a command's speech is made: on a running node, or on an engine of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from loguru import logger

from agent_tts.events import EngineInfo, SpeechOptions
from agent_tts.ipc.client import EngineProcess
from agent_tts.settings import Settings
from agent_tts.speech.service import SpeechService

# Audio that waits for a slow output. It takes the longest context that a node speaks, so that none is ever cut off.
BUFFER_BYTES = 16 << 20


class Utterance(Protocol):
    """What `Speech` and `RemoteSpeech` have in common."""

    def write(self, text: str) -> None: ...
    def end(self) -> None: ...
    def stop(self) -> None: ...
    def __aiter__(self) -> AsyncIterator[bytes]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """How an utterance ended."""

    busy_ms: float  # engine time
    cut: bool  # by a limit of the node


@dataclasses.dataclass(frozen=True, slots=True)
class Speaker:
    """Opens utterances."""

    open: Callable[[], Awaitable[Utterance]]
    end_of: Callable[[Utterance], End]  # of one that was read to its end


@asynccontextmanager
async def remote(url: str, key: str | None, options: SpeechOptions) -> AsyncIterator[Speaker]:
    """A running node.

    Raises:
        SpeechError: it cannot be reached, or refuses the options.
    """
    from agent_tts.client import connect
    from agent_tts.remote import RemoteSpeech

    def end_of(speech: Utterance) -> End:
        assert isinstance(speech, RemoteSpeech)
        assert speech.done is not None
        return End((speech.done.rtf or 0.0) * speech.done.audio_ms, speech.done.reason == "length")

    names = ("voice", "language", "seed", "speed", "pitch", "clean", "lead_ms")
    session = {name: getattr(options, name) for name in names}
    async with connect(url, api_key=key, buffer_bytes=BUFFER_BYTES, timestamps="none", **session) as node:
        yield Speaker(node.open, end_of)


@asynccontextmanager
async def local(settings: Settings, options: SpeechOptions) -> AsyncIterator[Speaker]:
    """An engine process of our own, which ends with the block.

    Raises:
        SpeechError: it does not start, or has no such voice or language.
    """
    from agent_tts.speech.session import Speech

    async with engine(settings) as (service, _):

        async def open_() -> Utterance:
            return service.open(options)

        def end_of(speech: Utterance) -> End:
            assert isinstance(speech, Speech)
            assert speech.finished is not None
            return End(speech.finished.busy_ms, speech.finished.reason == "length")

        service.resolve(options)
        yield Speaker(open_, end_of)


@asynccontextmanager
async def engine(settings: Settings) -> AsyncIterator[tuple[SpeechService, EngineInfo]]:
    """An engine process of our own, which ends with the block. Its log is not shown: what matters is in the errors.

    Raises:
        SettingsError: it cannot be set up like that.
        EngineLost: it does not start; the message says why.
    """
    logger.disable("agent_tts")
    service = SpeechService(lambda on_events, on_lost: EngineProcess(settings, on_events, on_lost))
    try:
        await service.start()
        assert service.info is not None
        yield service, service.info
    finally:
        try:
            await service.close()
        finally:
            logger.enable("agent_tts")
