"""Situations in long sessions of ElevenLabs' clients: waiting contexts, a full node, ended connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support import RunningNode, running_node, until

pytestmark = pytest.mark.node

LIMIT_S = 10.0
QUERY = "output_format=pcm_24000&auto_mode=true"


@asynccontextmanager
async def stream(node: RunningNode, path: str = "multi-stream-input") -> AsyncIterator[ClientConnection]:
    url = node.url.replace("http", "ws", 1) + f"/v1/text-to-speech/None/{path}?{QUERY}"
    async with connect(url, proxy=None) as socket:
        yield socket


async def say(socket: ClientConnection, **fields: Any) -> None:
    await socket.send(json.dumps(fields))


async def whole(socket: ClientConnection, context: str | None) -> list[dict[str, Any]]:
    """All messages of a context, to its end."""
    told: list[dict[str, Any]] = []
    async with asyncio.timeout(LIMIT_S):
        while not (told and told[-1].get("isFinal")):
            message = json.loads(await socket.recv())
            if message.get("contextId") == context:
                told.append(message)
    return told


async def test_keep_alives_extend_a_contexts_time_without_text() -> None:
    """Fails if keep-alives are ignored."""
    async with running_node(limits={"text_idle_s": 0.4}) as node, stream(node) as left, stream(node) as kept:
        await say(left, text="one.", context_id="left")
        await say(kept, text="one.", context_id="kept")
        for _ in range(12):
            await asyncio.sleep(0.1)
            await say(kept, text="", context_id="kept")
        assert "starved" in [message.get("error") for message in await whole(left, "left")]
        await say(kept, text="two.", context_id="kept")
        await say(kept, context_id="kept", flush=True)
        await say(kept, context_id="kept", close_context=True)
        told = await whole(kept, "kept")
        chars = [char for message in told if message["alignment"] for char in message["alignment"]["chars"]]
        assert "".join(chars).split() == ["one.", "two."]


async def test_a_full_node_answers_with_an_error_and_speaks_later() -> None:
    async with running_node(slots=1, queue=0) as node, stream(node) as socket:
        await say(socket, text="one " * 200, context_id="long")
        await until(lambda: node.node.service.speaking == 1)
        await say(socket, text="two ", context_id="late")
        error, final = await whole(socket, "late")
        assert (error["error"], final["audio"]) == ("at_capacity", None)
        await say(socket, context_id="long", close_context=True)
        await whole(socket, "long")
        await say(socket, text="three ", context_id="late")
        await say(socket, context_id="late", flush=True)
        await say(socket, context_id="late", close_context=True)
        assert any(message["audio"] for message in await whole(socket, "late"))


async def test_a_connection_beyond_the_limit_is_denied(caplog: pytest.LogCaptureFixture) -> None:
    async with running_node(limits={"connections": 1}) as node:
        async with stream(node):
            with pytest.raises(InvalidStatus) as caught:
                async with stream(node):
                    pass
            assert caught.value.response.status_code == 503
            assert json.loads(caught.value.response.body)["error"]["code"] == "at_capacity"
        assert not [record for record in caplog.records if record.name == "uvicorn.error"]
        await until(lambda: not node.node.sessions)
        async with stream(node, "stream-input"):
            pass


async def test_a_connection_closes_after_all_speech() -> None:
    async with running_node() as node, stream(node) as socket:
        await say(socket, text="one two ", context_id="a", flush=True)
        await say(socket, text="three " * 100, context_id="b")
        await say(socket, close_socket=True)
        told = await _to_the_close(socket)
        assert {message["contextId"] for message in told if message["isFinal"]} == {"a", "b"}
        assert socket.close_code == 1000


async def _to_the_close(socket: ClientConnection) -> list[dict[str, Any]]:
    told = []
    async with asyncio.timeout(LIMIT_S):
        try:
            while True:
                told.append(json.loads(await socket.recv()))
        except ConnectionClosed:
            return told
