"""An engine process for one command, without a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from loguru import logger

from agent_tts.config.lexicon import node_lexicon
from agent_tts.config.settings import Settings
from agent_tts.events import EngineInfo
from agent_tts.ipc.engine_process import engine_processes
from agent_tts.speech.service import SpeechService
from agent_tts.voices.library import VoiceLibrary


@asynccontextmanager
async def engine(settings: Settings) -> AsyncIterator[tuple[SpeechService, EngineInfo]]:
    """An engine process that ends with the block. Its log is off: `SettingsError` or `EngineLost` say what failed."""
    async with AsyncExitStack() as closing:
        logger.disable("agent_tts")
        closing.callback(logger.enable, "agent_tts")
        library = VoiceLibrary.of(settings.voices)
        processes = engine_processes(settings.model_copy(update={"engines": 1}))
        service = SpeechService(processes, library, lexicon=node_lexicon(settings))
        closing.push_async_callback(service.close)
        await service.start()
        assert service.info is not None
        yield service, service.info
