"""Requests of commands to a running node, and the files that they send."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from agent_tts.client.connection import ConnectionLost, http_url
from agent_tts.errors import SettingsError, SpeechError, Unauthorized, from_code
from agent_tts.serve.openai import ErrorBody

ANSWER_S = 10.0  # for a node to answer

_Answer = TypeVar("_Answer", bound=BaseModel)


def request(method: str, url: str, key: str | None, what: str, *, timeout_s: float = ANSWER_S, **body: Any) -> bytes:
    """Send a request for /v1/audio/`what` to the node at `url`; returns its answer.

    Raises:
        SpeechError: the node refuses; the message says why.
        ConnectionLost: no node answers there.
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


def read_clip(flag: str, audio: Path, limit: int | None) -> bytes:
    """An audio file of at most `limit` bytes. Raises SettingsError, which begins with `flag`."""
    try:
        clip = audio.read_bytes()
    except OSError as error:
        raise SettingsError(f"{flag}{audio.name}: {error.strerror}") from error
    if limit is not None and len(clip) > limit:
        raise SettingsError(f"{flag}{audio.name}: has more than {limit} bytes (voices.clip_bytes)")
    return clip
