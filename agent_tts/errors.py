"""Every error that a node sends: one small hierarchy, each class with its wire code and HTTP status.

A message says what is wrong and what is allowed. It leaves the node, so it has no user text, path or traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

RETRY_MS = 500  # default time after which a client may try again


# The error of each wire code.
BY_CODE: dict[str, type[SpeechError]] = {}


class SpeechError(Exception):
    """Base of all errors that clients may see.

    Args:
        message: what is wrong and what is allowed; safe to send to any client.
        retry_after_ms: time after which a client may try again; None when trying again does not help.
    """

    code: ClassVar[str] = "internal"  # the wire protocol's error code
    status: ClassVar[int] = 500  # the HTTP status of the same error
    context_id: str | None = None  # the client's id of the context that it concerns; None: it does not say

    def __init_subclass__(cls) -> None:
        BY_CODE.setdefault(cls.code, cls)

    def __init__(self, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms

    @property
    def again(self) -> dict[str, int]:
        """When a client may try again, as a field of a message; nothing when that does not help."""
        return {} if self.retry_after_ms is None else {"retry_after_ms": self.retry_after_ms}

    def about(self, context_id: str | None) -> Self:
        self.context_id = context_id
        return self


class Internal(SpeechError):
    """A fault of the node."""


class BadMessage(SpeechError):
    code, status = "bad_message", 400


class InvalidRequest(BadMessage):
    """A missing, unknown or invalid field of an HTTP request; `param` is its name."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownType(SpeechError):
    code, status = "unknown_type", 400


class UnsupportedProtocol(SpeechError):
    code, status = "unsupported_protocol", 400


class UnknownContext(SpeechError):
    code, status = "unknown_context", 404


class ContextExists(SpeechError):
    code, status = "context_exists", 409


class ContextLimit(SpeechError):
    code, status = "context_limit", 429


class TextTooLong(SpeechError):
    code, status = "text_too_long", 413


class UnknownModel(SpeechError):
    code, status = "model_not_found", 404


class UnknownVoice(SpeechError):
    code, status = "unknown_voice", 400


class VoiceExists(SpeechError):
    code, status = "voice_exists", 409


class VoiceLimit(SpeechError):
    # Not 429: trying again does not help.
    code, status = "voice_limit", 409


class StorageFull(SpeechError):
    code, status = "storage_full", 507


class UnknownDictionary(SpeechError):
    code, status = "unknown_dictionary", 404


class UnsupportedLanguage(SpeechError):
    code, status = "unsupported_language", 400


class UnsupportedFormat(SpeechError):
    code, status = "unsupported_format", 400


class Unsupported(SpeechError):
    # Not 501: OpenAI's client would try again.
    code, status = "unsupported", 400


class AtCapacity(SpeechError):
    code, status = "at_capacity", 503


class RateLimited(SpeechError):
    code, status = "rate_limited", 429


class Starved(SpeechError):
    code, status = "starved", 408


class RequestTimeout(SpeechError):
    code, status = "timeout", 408


class SlowConsumer(SpeechError):
    code, status = "slow_consumer", 408


class EngineLost(SpeechError):
    code, status = "engine_lost", 503


class Unauthorized(SpeechError):
    code, status = "unauthorized", 401


class Forbidden(Unauthorized):
    """No key would help: the request came to a host, or from an origin, that the settings do not allow."""

    code, status = "forbidden", 403


class Draining(SpeechError):
    code, status = "draining", 503

    def __init__(self, message: str = "the node is going away: use another one", **options: Any) -> None:
        super().__init__(message, **options)


def at_capacity(what: str, limit: int, setting: str | None = None) -> AtCapacity:
    """The refusal when `limit` of something are in use, and the setting that says so."""
    why = "" if setting is None else f" ({setting})"
    return AtCapacity(f"this node takes {limit} {what} at once{why}: try again", retry_after_ms=RETRY_MS)


def from_code(code: str, message: str, retry_after_ms: int | None = None) -> SpeechError:
    """The error of a wire code; an unknown code is an `Internal`."""
    return BY_CODE.get(code, Internal)(message, retry_after_ms=retry_after_ms)


class SettingsError(ValueError):
    """An unusable setting; the message names it and says what is allowed."""


def to_install(extra: str) -> str:
    """The command for a part of the package. No index has it yet: it comes from a checkout."""
    return f"pip install '.[{extra}]' in a checkout"


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Raise SettingsError, which says how to get it, where a package of a part of agent-tts is not there to import."""
    try:
        yield
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed: {to_install(extra)}") from error


def cut_short(audio_ms: int) -> SpeechError:
    """The speech ended before its text: a file of it must not look complete."""
    return TextTooLong(f"the speech was cut short after {audio_ms / 1_000:.1f} s: send the text in several requests")
