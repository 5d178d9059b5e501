"""What an error of a node means to a pipeline."""

from __future__ import annotations

from pipecat.utils.errors import ErrorCategory

from agent_tts.errors import RETRY_MS, SpeechError

RETRY_S = RETRY_MS / 1_000

# The node cannot speak now, whatever the text: another service should take over until it can.
PASSING = frozenset({"at_capacity", "engine_lost", "draining", "connection_lost"})

# Those whose HTTP status would mislead. A text that is refused says nothing about the next one.
_CATEGORIES = {
    "at_capacity": ErrorCategory.RATE_LIMIT,
    "connection_lost": ErrorCategory.CONNECTIVITY,
    "context_limit": ErrorCategory.RATE_LIMIT,
    "text_too_long": ErrorCategory.APPLICATION,
    "unknown_context": ErrorCategory.UNKNOWN,
    "context_exists": ErrorCategory.UNKNOWN,
}


def category(error: Exception) -> ErrorCategory | None:
    """Why it failed, in Pipecat's words; None where its HTTP status tells."""
    return _CATEGORIES.get(error.code) if isinstance(error, SpeechError) else None


def retry_s(error: SpeechError) -> float:
    """When the node may be tried again. A lost connection at once: another node may have its address."""
    if error.code == "connection_lost":
        return 0.0
    return (error.retry_after_ms or RETRY_MS) / 1_000
