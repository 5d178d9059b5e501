"""The engines of a process as its settings say, and an engine process for one command, without a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from loguru import logger

from agent_tts.config.files import FileContents
from agent_tts.config.lexicon import node_lexicon
from agent_tts.config.settings import Settings
from agent_tts.engine_info import EngineInfo
from agent_tts.ipc.engine_process import engine_processes
from agent_tts.speech.engine_handle import EngineClientFactory
from agent_tts.speech.service import SpeechService
from agent_tts.voices.library import VoiceLibrary


def service_of(
    settings: Settings,
    clients: Sequence[EngineClientFactory] | None = None,
    contents: FileContents | None = None,
    *,
    tries: bool = True,
    prefers: int = 0,
) -> SpeechService:
    """The engines of these settings, not started; `clients` in place of processes. See `SpeechService`.

    Raises:
        SettingsError: the voice library or the lexicon cannot be read.
    """
    return SpeechService(
        clients or engine_processes(settings),
        VoiceLibrary.of(settings.voices),
        aliases=settings.voice_aliases,
        lexicon=node_lexicon(settings, contents),
        tries=tries,
        prefers=prefers,
    )


@asynccontextmanager
async def engine(settings: Settings) -> AsyncIterator[tuple[SpeechService, EngineInfo]]:
    """An engine process that ends with the block. Its log is off: `SettingsError` or `EngineLost` say what failed."""
    async with AsyncExitStack() as closing:
        logger.disable("agent_tts")
        closing.callback(logger.enable, "agent_tts")
        service = service_of(settings.model_copy(update={"engines": 1}))
        assert service.library is not None
        await asyncio.to_thread(service.library.refresh)
        closing.push_async_callback(service.close)
        await service.start()
        assert service.info is not None
        yield service, service.info
