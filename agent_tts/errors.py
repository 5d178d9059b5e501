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

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        cls.code, cls.status = code or cls.code, status or cls.status
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


class BadMessage(SpeechError, code="bad_message", status=400): ...


class InvalidRequest(BadMessage):
    """A missing, unknown or invalid field of an HTTP request; `param` is its name."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownType(SpeechError, code="unknown_type", status=400): ...


class UnsupportedProtocol(SpeechError, code="unsupported_protocol", status=400): ...


class UnknownContext(SpeechError, code="unknown_context", status=404): ...


class ContextExists(SpeechError, code="context_exists", status=409): ...


class ContextLimit(SpeechError, code="context_limit", status=429): ...


class TextTooLong(SpeechError, code="text_too_long", status=413): ...


class UnknownModel(SpeechError, code="model_not_found", status=404): ...


class UnknownVoice(SpeechError, code="unknown_voice", status=400): ...


class VoiceExists(SpeechError, code="voice_exists", status=409): ...


# Not 429: trying again does not help.
class VoiceLimit(SpeechError, code="voice_limit", status=409): ...


class StorageFull(SpeechError, code="storage_full", status=507): ...


class UnknownDictionary(SpeechError, code="unknown_dictionary", status=404): ...


class UnknownConsent(SpeechError, code="unknown_consent", status=404): ...


class UnsupportedLanguage(SpeechError, code="unsupported_language", status=400): ...


class UnsupportedFormat(SpeechError, code="unsupported_format", status=400): ...


# Not 501: OpenAI's client would try again.
class Unsupported(SpeechError, code="unsupported", status=400): ...


class AtCapacity(SpeechError, code="at_capacity", status=503): ...


class RateLimited(SpeechError, code="rate_limited", status=429): ...


class Starved(SpeechError, code="starved", status=408): ...


class RequestTimeout(SpeechError, code="timeout", status=408): ...


class SlowConsumer(SpeechError, code="slow_consumer", status=408): ...


class EngineLost(SpeechError, code="engine_lost", status=503): ...


class Unauthorized(SpeechError, code="unauthorized", status=401): ...


class Forbidden(Unauthorized, code="forbidden", status=403):
    """No key would help: the request came to a host, or from an origin, that the settings do not allow."""


class Draining(SpeechError, code="draining", status=503):
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
