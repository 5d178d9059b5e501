"""What an error of a node means to LiveKit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from livekit.agents import APIConnectionError, APIStatusError, APITimeoutError

from agent_tts.client.connection import ConnectionLost
from agent_tts.errors import SpeechError


@contextmanager
def api_errors() -> Iterator[None]:
    """Raise the errors of a node as LiveKit's, which tell whether to try again and let a fallback take over.

    What is refused for now (`at_capacity`, `draining`, `engine_lost`, `context_limit`) may be tried again, here or
    elsewhere; what is refused for good (a voice, a language, a key) is not.

    Raises:
        APIConnectionError: there is no connection to the node, or it was lost.
        APITimeoutError: the node did not answer in time.
        APIStatusError: the node refused; `body` has its `code` and `retry_after_ms`.
    """
    try:
        yield
    except ConnectionLost as error:
        raise APIConnectionError(error.message) from error
    except SpeechError as error:
        body = {"code": error.code, "retry_after_ms": error.retry_after_ms}
        raise APIStatusError(error.message, status_code=error.status, body=body) from error
    except TimeoutError as error:
        raise APITimeoutError("the node did not answer in time") from error
