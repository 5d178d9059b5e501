"""What a command asks of a running node, or of an engine process of its own: requests, and utterances."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from agent_tts.cli.options import SETTINGS
from agent_tts.client.connection import ConnectionLost, http_url
from agent_tts.config.hub import with_local_models
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError, SpeechError, Unauthorized, from_code
from agent_tts.options import SpeechOptions, declared
from agent_tts.protocol.utterance import AnyUtterance
from agent_tts.serve.local_engine import engine
from agent_tts.serve.openai import ErrorBody

ANSWER_S = 10.0  # for a node to answer
# Buffer for a slow output. It holds the longest context that a node speaks, so that no context is cut off.
BUFFER_BYTES = 16 << 20
MAX_UPLOAD = 1 << 28  # bytes of a clip for a running node, which knows its own limit

Speaker = Callable[[], Awaitable[AnyUtterance]]  # opens utterances

_Answer = TypeVar("_Answer", bound=BaseModel)


def request(method: str, url: str, key: str | None, what: str, *, timeout_s: float = ANSWER_S, **body: Any) -> bytes:
    """Send a request for /v1/audio/`what` to the node at `url`; returns its answer.

    Raises SpeechError: the node refuses; the message says why; ConnectionLost: no node answers there.
    """
    base = http_url(url)
    host = urlsplit(base).netloc
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(method, f"{base}/v1/audio/{what}", headers=headers, timeout=timeout_s, **body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionLost(f"no node answers at {host}: {type(error).__name__}") from error
    if answer.is_success:
        return answer.content
    if answer.status_code == Unauthorized.status:
        reason = "the node does not accept this API key" if key else "an API key is needed"
        raise Unauthorized(f"{reason}: set AGENT_TTS_KEY")
    raise _refusal(answer, host)


def _refusal(answer: httpx.Response, host: str) -> SpeechError:
    try:
        error = ErrorBody.model_validate_json(answer.content).error
    except ValidationError:
        return ConnectionLost(f"{host} answers with HTTP {answer.status_code}: is it a node?")
    return from_code(error.code, error.message)


def answer_of(model: type[_Answer], answer: bytes) -> _Answer:
    """An answer as a model. Raises ConnectionLost: it is not a node's."""
    try:
        return model.model_validate_json(answer)
    except ValidationError as error:
        raise ConnectionLost("what answers there is not a node") from error


def read_clip(flag: str, audio: Path, limit: int = MAX_UPLOAD) -> bytes:
    """An audio file of at most `limit` bytes. Raises SettingsError, which begins with `flag`."""
    try:
        with audio.open("rb") as file:  # it may be a device or a pipe
            clip = file.read(limit + 1)
    except OSError as error:
        raise SettingsError(f"{flag}{audio.name}: {error.strerror}") from error
    if len(clip) > limit:
        raise SettingsError(f"{flag}{audio.name}: has more than {limit} bytes (voices.clip_bytes)")
    return clip


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
