"""Connections that are shared, replaced and opened ahead, with a real node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent_tts.client.connection import ConnectionLost
from agent_tts.client.moving import Target
from agent_tts.integrations.pool import Pool
from tests.support import RunningNode, running_node, until


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(limits={"contexts_per_session": 2}) as running:
        yield running


@asynccontextmanager
async def pool_of(url: str) -> AsyncIterator[Pool]:
    pool = Pool(Target(url))
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A server that accepts connections and never answers; yields its URL."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def test_a_connection_is_shared_up_to_the_nodes_limit(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        lent = []
        for _ in range(5):
            connection, is_reused = await pool.usable(10)
            lent.append((connection, connection.begin(), is_reused))
        assert [is_reused for *_, is_reused in lent] == [False, True, False, True, False]
        assert len({id(connection) for connection, *_ in lent}) == 3
        _, speech, _ = lent[0]
        await speech.cancel()  # another may take its place
        assert await pool.usable(10) == (lent[0][0], True)


async def test_concurrent_requests_open_one_connection(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        await asyncio.gather(*(pool.usable(10) for _ in range(2)))
        assert len(node.node.sessions) == 1


async def test_a_draining_node_gets_no_new_contexts(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        old, _ = await pool.usable(10)
        speech = await old.open()
        next(iter(node.node.sessions)).drain()
        await until(lambda: not old.is_usable)
        new, is_reused = await pool.usable(10)
        assert new is not old
        assert not is_reused
        assert old.lost is None
        await speech.cancel()
        assert await pool.usable(10) == (new, True)
        assert old.lost is not None  # closed once its last context ended


async def test_a_lost_connection_is_replaced(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        old, _ = await pool.usable(10)
        await old.close()
        new, is_reused = await pool.usable(10)
        assert new.lost is None
        assert not is_reused


async def test_a_prewarmed_connection_is_reused(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        assert pool.info is None
        pool.prewarm()
        pool.prewarm()
        await until(lambda: pool.info is not None)
        _, is_reused = await pool.usable(10)
        assert is_reused
        assert len(node.node.sessions) == 1


async def test_a_failed_prewarming_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with pool_of("http://127.0.0.1:1") as pool:
        with caplog.at_level(logging.WARNING):
            pool.prewarm()
            await until(lambda: bool(caplog.records))
        assert "no node answers at 127.0.0.1:1" in caplog.text
        with pytest.raises(ConnectionLost):
            await pool.usable(10)


async def test_closing_cancels_a_prewarming() -> None:
    async with silent_server() as url, pool_of(url) as pool:
        pool.prewarm()
        pool.prewarm()
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await pool.close()


async def test_a_silent_node_times_out() -> None:
    async with silent_server() as url, pool_of(url) as pool:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await pool.usable(0.2)
        assert time.monotonic() - began < 5  # the connection's own timeout is 10 s
