"""Opens utterances for a command: on a running node, or on an engine process of the command's own."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent_tts.cli.options import SETTINGS
from agent_tts.config.hub import with_local_models
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.options import SpeechOptions, declared
from agent_tts.protocol.utterance import AnyUtterance
from agent_tts.serve.local_engine import engine

# Buffer for a slow output. It holds the longest context that a node speaks, so that no context is cut off.
BUFFER_BYTES = 16 << 20


Speaker = Callable[[], Awaitable[AnyUtterance]]  # opens utterances


def own_settings(flags: dict[str, Any]) -> Settings:
    """Settings of the command's own engine, from those given. Missing models are downloaded first."""
    return with_local_models(load_settings(overrides={key: value for key, value in flags.items() if value is not None}))


def refuse_engine_flags(flags: dict[str, Any]) -> None:
    """Raise `SettingsError` if a flag is given that applies only to the command's own engine."""
    options = {key: f"--{name.replace('_', '-')}" for name, key in SETTINGS.items()}
    given = [options.get(key, f"--set {key}") for key, value in flags.items() if value is not None]
    if given:
        raise SettingsError(f"{', '.join(given)}: a running node (--url, AGENT_TTS_URL) has its own: leave it out")


@asynccontextmanager
async def remote(url: str, key: str | None, options: SpeechOptions) -> AsyncIterator[Speaker]:
    """Connect to a running node. Raises SpeechError: it cannot be reached or refuses the options."""
    from agent_tts.client.moving import connect

    session = {name: getattr(options, name) for name in declared(SpeechOptions)}
    session["sampling"] = dataclasses.asdict(options.sampling)
    session["lexicon"] = None if options.lexicon is None else options.lexicon.mapping()
    async with connect(url, api_key=key, buffer_bytes=BUFFER_BYTES, timestamps="none", **session) as node:
        yield node.open


@asynccontextmanager
async def local(settings: Settings, options: SpeechOptions) -> AsyncIterator[Speaker]:
    """Start an engine process, which ends with the block. Raises SpeechError: it does not start, or lacks the voice."""
    async with engine(settings) as (service, _):
        resolved = service.resolve(options)

        async def open_() -> AnyUtterance:
            return service.open(resolved)

        yield open_
