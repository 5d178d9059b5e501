"""Connections that are shared, replaced and made ahead, on a real node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from agent_tts.client.connection import ConnectionLost
from agent_tts.integrations.livekit.pool import Pool
from tests.support import RunningNode, running_node, until


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node(limits={"contexts_per_session": 2}) as running:
        yield running


@asynccontextmanager
async def pool_of(url: str) -> AsyncIterator[Pool]:
    pool = Pool(url, None)
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The url of what takes connections and never answers."""

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


async def test_a_connection_is_shared_by_as_many_as_the_node_allows(node: RunningNode) -> None:
    async with pool_of(node.url) as pool, AsyncExitStack() as stack:
        lent = [await stack.enter_async_context(pool.connection(10)) for _ in range(5)]
    assert [is_reused for _, is_reused in lent] == [False, True, False, True, False]
    assert len({id(connection) for connection, _ in lent}) == 3


async def test_those_who_ask_at_once_make_one_connection(node: RunningNode) -> None:
    async def use(pool: Pool) -> None:
        async with pool.connection(10):
            pass

    async with pool_of(node.url) as pool:
        await asyncio.gather(*(use(pool) for _ in range(2)))
        assert len(node.node.sessions) == 1


async def test_a_connection_to_a_node_that_goes_away_gets_no_new_contexts(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        async with pool.connection(10) as (old, _):
            speech = await old.open()
            next(iter(node.node.sessions)).drain()
            await until(lambda: old.draining)
            async with pool.connection(10) as (new, is_reused):
                assert new is not old
                assert not is_reused
                assert old.lost is None
            await speech.cancel()
        async with pool.connection(10) as (again, is_reused):
            assert again is new
            assert is_reused
            assert old.lost is not None  # closed, with nobody on it


async def test_one_that_is_lost_is_replaced(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        async with pool.connection(10) as (old, _):
            await old.close()
        async with pool.connection(10) as (new, is_reused):
            assert new.lost is None
            assert not is_reused


async def test_prewarmed_it_is_there_when_it_is_asked_for(node: RunningNode) -> None:
    async with pool_of(node.url) as pool:
        assert pool.info is None
        pool.prewarm()
        pool.prewarm()
        await until(lambda: pool.info is not None)
        async with pool.connection(10) as (_, is_reused):
            assert is_reused
        assert len(node.node.sessions) == 1


async def test_a_prewarming_that_fails_is_logged_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with pool_of("http://127.0.0.1:1") as pool:
        with caplog.at_level(logging.WARNING):
            pool.prewarm()
            await until(lambda: bool(caplog.records))
        assert "no node answers at 127.0.0.1:1" in caplog.text
        with pytest.raises(ConnectionLost):
            async with pool.connection(10):
                pass


async def test_closing_gives_a_prewarming_up() -> None:
    async with silent_server() as url, pool_of(url) as pool:
        pool.prewarm()
        pool.prewarm()
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await pool.close()


async def test_a_node_that_does_not_answer_is_given_up_in_time() -> None:
    async with silent_server() as url, pool_of(url) as pool:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with pool.connection(0.2):
                pass
        assert time.monotonic() - began < 5  # a connection that is waited for takes its 10 s
