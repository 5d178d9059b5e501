"""The official `openai` client, unmodified but for its base URL, on a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.support import RunningNode, running_node, until

pytestmark = pytest.mark.node

KEY = "k" * 32


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(auth={"api_keys": [KEY]}, tone={"scripted_faults": True}, slots=1, queue=0) as running:
        yield running


@asynccontextmanager
async def connect(node: RunningNode, key: str = KEY, retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{node.url}/v1", api_key=key, max_retries=retries, timeout=10) as client:
        yield client


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[openai.AsyncOpenAI]:
    async with connect(node) as made:
        yield made


async def test_models(client: openai.AsyncOpenAI, node: RunningNode) -> None:
    names = [model.id async for model in await client.models.list()]
    german = await client.models.retrieve("tts-1-hd-de")
    assert german.to_dict() == {"id": "tts-1-hd-de", "object": "model", "created": 0, "owned_by": "agent_tts"}
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("whisper-1")
    assert names == ["tone", "gpt-4o-mini-tts", "tts-1", "tts-1-hd"]


async def test_errors_are_those_of_openai(client: openai.AsyncOpenAI, node: RunningNode) -> None:
    good: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": "Hello"}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.speech.create(**good | {"voice": "nobody"})
    refused = caught.value.code, caught.value.param, caught.value.type
    assert refused == ("unknown_voice", "voice", "invalid_request_error")
    async with connect(node, key="wrong") as wrong:
        with pytest.raises(openai.AuthenticationError):
            await wrong.audio.speech.create(**good)


async def test_the_client_retries_when_the_node_says(client: openai.AsyncOpenAI, node: RunningNode) -> None:
    """The client's own retry, with the node's `Retry-After`, succeeds."""
    long: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": "word " * 3_900, "response_format": "pcm"}
    async with connect(node, retries=3) as patient:
        async with client.audio.speech.with_streaming_response.create(**long):
            with pytest.raises(openai.InternalServerError) as busy:
                await client.audio.speech.create(model="tts-1", voice="alloy", input="Hello")
            assert busy.value.code == "at_capacity"
            waiting = asyncio.create_task(patient.audio.speech.create(model="tts-1", voice="alloy", input="Hello"))
            at_capacity = ("agent_tts_refused_total", {"code": "at_capacity"})
            await until(lambda: (node.node.metrics.registry.get_sample_value(*at_capacity) or 0) >= 2)
        assert (await waiting).content
