"""Each error of a node as LiveKit has it."""

from __future__ import annotations

import pytest
from livekit.agents import APIConnectionError, APIStatusError, APITimeoutError

from agent_tts.client.connection import ConnectionLost
from agent_tts.errors import BY_CODE, from_code
from agent_tts.integrations.livekit.tts import api_errors

# What another try, or another node, may cure.
PASSING = {"at_capacity", "draining", "engine_lost", "context_limit", "starved", "timeout", "slow_consumer", "internal"}


@pytest.mark.parametrize("code", sorted(set(BY_CODE) - {ConnectionLost.code}))
def test_a_refusal_tells_whether_to_try_again(code: str) -> None:
    with pytest.raises(APIStatusError, match="why") as caught, api_errors():
        raise from_code(code, "why", 250)
    assert caught.value.status_code == BY_CODE[code].status
    assert caught.value.body == {"code": code, "retry_after_ms": 250}
    assert caught.value.retryable == (code in PASSING)


def test_a_lost_connection_may_be_tried_again() -> None:
    with pytest.raises(APIConnectionError, match="gone") as caught, api_errors():
        raise ConnectionLost("gone")
    assert caught.value.retryable


def test_silence_is_a_timeout() -> None:
    with pytest.raises(APITimeoutError) as caught, api_errors():
        raise TimeoutError
    assert caught.value.retryable
