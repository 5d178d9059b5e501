"""`agent-tts agent` with a front that runs no call, and a process that runs nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.agent.caller import Caller, calling
from tests.node_process import RunningProcess, running_process
from tests.support import until

pytestmark = [
    pytest.mark.node,
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="several fronts need Linux"),
]

FLAGS = ("--fronts", "1", "--set", "agent.processes=1", "--set", "agent.stt.kind=none", "--set", "agent.calls=2")
LLM = ("--set", "agent.llm.base_url=http://127.0.0.1:9/v1")
BACK_S = 30.0  # for a process to start on a busy machine


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProcess]:
    """It serves the node and the agent, and exits on SIGTERM."""
    with running_process(tmp_path_factory.mktemp("agent"), *FLAGS, *LLM, command="agent") as running:
        assert httpx.get(f"{running.url}/health").json()["status"] == "ok"
        assert httpx.get(f"{running.url}/api/agent", timeout=20).json()["llm"]["kind"] == "builtin"
        yield running
        running.process.terminate()
        assert running.process.wait(BACK_S) == 0, running.log


async def refusal(url: str) -> str | None:
    """Why another call is refused, if it is; it never connects."""
    async with Caller() as caller, httpx.AsyncClient(timeout=20) as http:
        reply = await http.post(f"{url}/api/agent/offer", json={"sdp": await caller.offer(), "type": "offer"})
    return None if reply.status_code == 200 else str(reply.json()["error"]["code"])


async def test_candidates_for_a_call_that_no_front_has_are_refused(node: RunningProcess) -> None:
    before = node.pids()
    async with httpx.AsyncClient() as http:
        for session_id in ("0-none", "1-none", "2-none", "none"):
            made_up = {"pc_id": session_id, "candidates": list[str]()}
            reply = await http.patch(f"{node.url}/api/agent/offer", json=made_up)
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, "bad_message"), session_id
    assert node.pids() == before


async def test_a_call_runs_in_a_process_that_runs_nothing_else_and_ends_with_it(node: RunningProcess) -> None:
    assert sorted(node.pids()) == ["engine 0", "front 0", "front 1", "supervisor"]
    async with calling(node.url) as caller, calling(node.url) as other:
        await caller.ask("Hello.")
        await other.ask("Hello.")
        assert await refusal(node.url) == "at_capacity"
        killed = node.kill("front 1")
        await until(lambda: node.pids().get("front 1", killed) != killed, BACK_S)
        async with asyncio.timeout(BACK_S):
            while (code := await refusal(node.url)) == "at_capacity":  # it is restarting
                await asyncio.sleep(0.2)
        assert code is None
        async with calling(node.url) as again:
            await again.ask("Hello.")
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{node.url}/metrics")).text
    assert 'agent_tts_front_starts_total{front="1"} 2.0' in page
    assert 'agent_tts_front_starts_total{front="0"} 1.0' in page


async def test_a_realtime_session_is_refused_with_the_setting(node: RunningProcess) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"{node.url.replace('http', 'ws')}/v1/realtime")
    assert b"agent.processes: 0" in (caught.value.response.body or b"")
