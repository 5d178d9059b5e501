"""The benchmark's cheap WebSocket client, and a real node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_tts.bench.connection import dial
from agent_tts.client.connection import ConnectionLost, stream_url
from tests.support import running_node

pytestmark = pytest.mark.node


class KeptContext:
    """Records what it receives."""

    def __init__(self) -> None:
        self.bytes = 0
        self.messages: list[str] = []
        self.over = asyncio.Event()

    def heard(self, now: float, pcm: bytes | memoryview) -> None:
        self.bytes += len(pcm)

    def told(self, now: float, message: dict[str, Any]) -> None:
        self.messages.append(message["type"])
        if message["type"] in ("context.done", "error"):
            self.over.set()


async def test_several_contexts_speak_on_one_connection() -> None:
    async with running_node() as node:
        connection = await dial(node.ws_url)
        kept = [KeptContext(), KeptContext()]
        for number, one in enumerate(kept):
            connection.listen(f"t{number}", one)
            connection.send("text.append", context_id=f"t{number}", text="one two")
            connection.send("context.end", context_id=f"t{number}")
        async with asyncio.timeout(10):
            await asyncio.gather(*(one.over.wait() for one in kept))
        await connection.close()
    assert [one.bytes for one in kept] == [17_280, 17_280]
    assert kept[0].messages[-1] == "context.done"


async def test_a_refused_context_gets_an_error_and_is_removed() -> None:
    async with running_node() as node:
        connection = await dial(node.ws_url)
        one = KeptContext()
        connection.listen("t", one)
        connection.send("context.open", context_id="t", voice="nobody")
        async with asyncio.timeout(10):
            await one.over.wait()
        await connection.close()
        assert one.messages == ["error"]  # no other, of a lost connection


async def test_a_ping_is_answered() -> None:
    """A node cuts a client that does not answer its pings."""
    async with running_node(timeouts={"ping_s": 0.2}) as node:
        connection = await dial(node.ws_url)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.shield(connection.closed)
        await connection.close()


async def test_a_lost_connection_is_reported_to_every_context() -> None:
    async with running_node() as node:
        connection = await dial(node.ws_url)
        one = KeptContext()
        connection.listen("t", one)
        connection.send("context.open", context_id="t")
        await connection.close()
        assert one.messages[-1] == "error"
        connection.send("ping")


async def test_a_node_that_refuses_is_a_lost_connection() -> None:
    async with running_node(auth={"api_keys": ["sesame"]}) as node:
        with pytest.raises(ConnectionLost, match="the API key is wrong"):
            await dial(node.ws_url, "wrong")
        connection = await dial(node.ws_url, "sesame")
        await connection.close()
        with pytest.raises(ConnectionLost, match="HTTP"):
            await dial(stream_url(node.url + "/elsewhere"))
    with pytest.raises(ConnectionLost, match="no node answers"):
        await dial(node.ws_url)
