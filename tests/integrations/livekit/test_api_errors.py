from __future__ import annotations

import pytest
from livekit.agents import APIConnectionError, APIStatusError, APITimeoutError

from agent_tts.client.connection import ConnectionLost
from agent_tts.errors import BY_CODE, from_code
from agent_tts.integrations.livekit.tts import api_errors

# Errors that a retry or another node may resolve.
PASSING = {
    "at_capacity",
    "draining",
    "engine_lost",
    "context_limit",
    "starved",
    "timeout",
    "rate_limited",
    "slow_consumer",
    "storage_full",
    "internal",
}


@pytest.mark.parametrize("code", sorted(set(BY_CODE) - {ConnectionLost.code}))
def test_a_refusal_decides_whether_to_retry(code: str) -> None:
    with pytest.raises(APIStatusError, match="why") as caught, api_errors():
        raise from_code(code, "why", 250)
    assert caught.value.status_code == BY_CODE[code].status
    assert caught.value.body == {"code": code, "retry_after_ms": 250}
    assert caught.value.retryable == (code in PASSING)


def test_a_lost_connection_may_be_retried() -> None:
    with pytest.raises(APIConnectionError, match="gone") as caught, api_errors():
        raise ConnectionLost("gone")
    assert caught.value.retryable


def test_no_answer_is_a_timeout() -> None:
    with pytest.raises(APITimeoutError) as caught, api_errors():
        raise TimeoutError
    assert caught.value.retryable
