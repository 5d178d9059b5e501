"""What Deepgram's two streaming protocols and its HTTP API have in common: the query, and what a voice is. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_tts.errors import UnsupportedFormat
from agent_tts.protocol.validation import first_complaint, message_error
from agent_tts.speech.routing import ANY_NAME

# What Pipecat's and LiveKit's classes ask for when their user names no voice.
STOCK_MODELS = frozenset({"aura-2-helena-en", "aura-2-andromeda-en", "flux-heather-en", "flux-alexis-en"})

# Encodings of raw audio, by Deepgram's names, with the rate of each where none is asked for.
ENCODINGS = {"linear16": ("pcm_s16le", 24_000), "mulaw": ("mulaw", 8_000), "alaw": ("alaw", 8_000)}

# Close codes after errors; a fault of the client where there is none.
CLOSE_CODES = {"at_capacity": 1013, "draining": 1012, "engine_lost": 1011, "internal": 1011, "slow_consumer": 1011}
POLICY_VIOLATION = 1008


class Query(BaseModel):
    """The query of a connection or request. What it does not name is ignored: tags, opting out, expressivity."""

    model_config = ConfigDict(frozen=True)

    model: str | None = Field(None, max_length=256)  # the voice
    encoding: str | None = None
    sample_rate: int | None = None
    speed: float | None = Field(None, allow_inf_nan=False)


class Speak(BaseModel):
    """A message with text to be spoken."""

    model_config = ConfigDict(frozen=True, strict=True)

    text: str


Checked = TypeVar("Checked", bound=BaseModel)


def check(kind: type[Checked], fields: Mapping[str, Any]) -> Checked:
    """A query or a message as values.

    Raises:
        BadMessage: which field is not as it has to be, without its content.
    """
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise message_error(first_complaint(error)) from None


def session_of(query: Query, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a session that streams as the query asks.

    Raises:
        UnsupportedFormat: says which encodings a stream has.
    """
    encoding, sample_rate = raw_format(query)
    session: dict[str, Any] = {
        "voice": voice_of(query.model, aliases),
        "timestamps": "none",  # these protocols have no word for them
        "output": {"encoding": encoding, "sample_rate": sample_rate},
    }
    if query.speed is not None:
        session["speed"] = query.speed
    return session


def raw_format(query: Query) -> tuple[str, int]:
    """Encoding, by our name, and sample rate of raw audio.

    Raises:
        UnsupportedFormat: says which encodings there are.
    """
    if (found := ENCODINGS.get(query.encoding or "linear16")) is None:
        raise UnsupportedFormat(f"encoding of raw audio is one of {', '.join(ENCODINGS)}")
    encoding, usual_rate = found
    return encoding, usual_rate if query.sample_rate is None else query.sample_rate


def voice_of(model: str | None, aliases: Mapping[str, str]) -> str | None:
    """The voice that a model means; None is the engine's default.

    Args:
        aliases: the node's names of voices: they go before what the stock clients ask for on their own account.
    """
    if model in STOCK_MODELS and model not in aliases and ANY_NAME not in aliases:
        return None
    return model or None


def described(code: str, message: str) -> str:
    """What is said of an error: of an unknown voice also what the node's operator can do."""
    return (
        f"{message}; voice_aliases, a setting of the node, gives voices other names"
        if code == "unknown_voice"
        else message
    )


def model_uuid(model: str) -> str:
    """A model's id: the same for the same name."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, model))
