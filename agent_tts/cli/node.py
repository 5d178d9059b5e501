"""Requests to the voices of a running node."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from pydantic import ValidationError

from agent_tts.client.connection import ConnectionLost, http_url
from agent_tts.errors import SpeechError, Unauthorized, from_code
from agent_tts.serve.routes.openai import ErrorBody

ANSWER_S = 10.0


def request(
    method: str, url: str, key: str | None, voice: str | None = None, *, timeout_s: float = ANSWER_S, **body: Any
) -> bytes:
    """Ask the node that `url` names, and give its answer.

    Args:
        voice: the voice that is meant; None is all of them.
        body: as `httpx.request` takes it.

    Raises:
        SpeechError: the node refuses; the message says why.
        ConnectionLost: no node answers there.
        SettingsError: the url names none.
    """
    base = http_url(url)
    path = f"{base}/v1/audio/voices" + (f"/{quote(voice, safe='')}" if voice is not None else "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(method, path, headers=headers, timeout=timeout_s, **body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectionLost(f"no node answers at {urlsplit(base).netloc}: {type(error).__name__}") from error
    if answer.status_code == Unauthorized.status:
        asked = "the node does not take this API key" if key else "an API key is needed"
        raise Unauthorized(f"{asked}: set AGENT_TTS_KEY")
    if answer.is_success:
        return answer.content
    raise _refusal(answer, urlsplit(base).netloc)


def _refusal(answer: httpx.Response, host: str) -> SpeechError:
    try:
        error = ErrorBody.model_validate_json(answer.content).error
    except ValidationError:
        return ConnectionLost(f"{host} answers with HTTP {answer.status_code}: is it a node?")
    return from_code(error.code, error.message)
