"""A node with two fronts in processes of their own is one node: limits, tokens, WebRTC sessions, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent_tts.serve.access.supervisor_client import front_of
from tests.node_process import RunningProcess, running_process
from tests.rtc_peer import connected
from tests.wire import Wire, wire

pytestmark = [
    pytest.mark.node,
    pytest.mark.real_time,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="several fronts need Linux"),
]

KEY, OTHER = {"X-API-Key": "one"}, {"X-API-Key": "two"}
SESSIONS = 8
FLAGS = (
    *("--fronts", "2", "--slots", "16", "--set", 'auth.api_keys=["one","two"]'),
    *("--set", f"limits.sessions_per_key={SESSIONS}"),
)
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProcess]:
    with running_process(tmp_path_factory.mktemp("node"), *FLAGS) as running:
        yield running


async def is_greeted(peer: Wire) -> bool:
    first = await peer.receive()
    return first is not None and first["type"] == "session.created"


async def page(node: RunningProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    async with httpx.AsyncClient(headers=KEY, timeout=PATIENCE_S) as http:
        text = (await http.get(f"{node.url}/metrics")).text
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for each in families
        for sample in each.samples
    }


@asynccontextmanager
async def on_both_fronts(node: RunningProcess, count: int) -> AsyncIterator[list[Wire]]:
    """So many sessions of one key, some on each front."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with AsyncExitStack() as closing:
                peers = [
                    await closing.enter_async_context(wire(node.ws_url, additional_headers=KEY)) for _ in range(count)
                ]
                greeted = [await is_greeted(peer) for peer in peers]
                if all(greeted) and len({node.front_of(peer.socket.local_address) for peer in peers}) == 2:
                    yield peers
                    return
            await asyncio.sleep(0.1)  # the sessions end


async def test_a_token_that_races_over_both_fronts_opens_one_session(node: RunningProcess) -> None:
    winners: set[str] = set()
    async with httpx.AsyncClient(headers=KEY) as http:
        for _ in range(20):
            token = (await http.post(f"{node.url}/v1/tokens")).json()["token"]
            async with AsyncExitStack() as closing:
                opening = (closing.enter_async_context(wire(f"{node.ws_url}?token={token}")) for _ in range(6))
                peers = await asyncio.gather(*opening)
                greeted = await asyncio.gather(*(is_greeted(peer) for peer in peers))
                (winner,) = [peer for peer, good in zip(peers, greeted, strict=True) if good]
                winners.add(node.front_of(winner.socket.local_address))
    assert len(winners) == 2


async def test_a_key_has_its_sessions_on_all_fronts_together(node: RunningProcess) -> None:
    async with on_both_fronts(node, SESSIONS):
        for _ in range(6):
            async with wire(node.ws_url, additional_headers=KEY) as peer:
                assert not await is_greeted(peer)
        async with wire(node.ws_url, additional_headers=OTHER) as peer:
            assert await is_greeted(peer)


async def test_a_peer_is_closed_whichever_front_gets_the_request(node: RunningProcess) -> None:
    asked: set[bool] = set()
    async with asyncio.timeout(PATIENCE_S):
        while len(asked) < 2:
            async with connected(node.url, KEY) as peer, httpx.AsyncClient() as http:
                path = f"{node.url}/v1/rtc/{peer.session_id}"
                assert (await http.delete(path, headers=OTHER)).status_code == 404
                (request,) = http._transport._pool.connections  # type: ignore[attr-defined]
                stream = request._connection._network_stream.get_extra_info("client_addr")
                asked.add(node.front_of(stream) == f"front {front_of(peer.session_id)}")
                assert (await http.delete(path, headers=KEY)).status_code == 204
                await peer.wait(lambda: peer.channel.readyState == "closed")


async def test_the_page_of_any_front_has_what_both_have_done(node: RunningProcess) -> None:
    done = ("agent_tts_contexts_total", (("carrier", "websocket"), ("reason", "end")))
    before = (await page(node)).get(done, 0.0)
    async with on_both_fronts(node, 4) as peers:
        for peer in peers:
            await peer.say("t", "some words", lead_ms=None)
            await peer.until("context.done")
        for _ in range(6):
            found = await page(node)
            assert found[done] == before + 4
            assert found["agent_tts_front_up", (("front", "0"),)] == found["agent_tts_front_up", (("front", "1"),)] == 1
            assert found["agent_tts_engine_up", (("engine", "0"),)] == 1
            assert found["agent_tts_slots", ()] == 16
            assert found["agent_tts_sessions", ()] == 4
