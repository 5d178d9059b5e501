"""Access to the agent's HTTP routes, the limit of calls, invalid offers, and cleanup after a call."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from typing import Any

import httpx
import pytest
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer

from agent_tts.agent.call import LEFT_S
from agent_tts.ipc.front_messages import BeginCall
from agent_tts.serve.transports.sdp import MAX_CANDIDATES
from tests.agent.caller import Caller, calling
from tests.agent.node import running_agent
from tests.support import present, running_node, uncollected, until

KEY = {"Authorization": "Bearer sesame"}
# Offers that are refused, and what is said.
OFFERS: list[tuple[dict[str, Any], str]] = [
    ({"sdp": "v=0", "type": "offer", "more": [[]] * 5_000}, "at most 4096 values"),  # counted before they are made
    ({}, "sdp"),
    ({"sdp": "v=0", "type": "answer"}, "type"),
    ({"sdp": "nonsense", "type": "offer"}, "begin with v=0"),
    ({"sdp": "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\n", "type": "offer"}, "rtcp-mux"),
]
# And such candidates.
CANDIDATES = [
    (["candidate:x"], "candidate"),
    (["candidate:1 1 udp 1 192.0.2.7 99999 typ host"], "port"),
    (["candidate:1 1 udp 1 192.0.2.7 0 typ host"], "port"),
    (["x" * 900], "a candidate"),
    ([""] * (MAX_CANDIDATES + 1), "at most 64"),
]


async def test_a_node_without_an_agent_reports_that_and_accepts_no_call() -> None:
    """The status is no HTTP error: a browser would log one on every page."""
    async with running_node() as node, httpx.AsyncClient(base_url=node.url) as client:
        told = await client.get("/api/agent")
        assert (told.status_code, told.json()) == (200, None)
        assert (await client.post("/api/agent/offer", json={})).status_code == 404


async def test_the_page_gets_the_components_and_an_invalid_offer_is_refused() -> None:
    async with running_agent() as agent, httpx.AsyncClient(base_url=agent.url, timeout=20) as client:
        told = (await client.get("/api/agent")).json()
        for body, said in OFFERS:
            reply = await client.post("/api/agent/offer", json=body)
            assert (reply.status_code, said in reply.json()["error"]["message"]) == (400, True), said
        with pytest.raises(ConnectionRefusedError, match=r"400.*voice"):
            async with calling(agent.url, choice={"voice": "nobody"}):
                pass
        assert agent.calls == 0
    assert told["stt"]["kind"] == "none"
    assert told["stt"]["message"].endswith("Typed chat works.")
    assert (told["llm"]["kind"], told["llm"]["name"]) == ("builtin", "built-in responder")
    assert "http://127.0.0.1:9/v1" in told["llm"]["message"]
    assert told["tts"] == {"kind": "espeak", "name": "espeak-ng", "message": None}
    assert told["ice_servers"] == []
    assert told["level_db"] == -40.0


async def test_each_route_needs_a_key_or_a_token() -> None:
    async with running_agent(node={"auth": {"api_keys": ["sesame"]}}) as agent:
        async with httpx.AsyncClient(base_url=agent.url, timeout=20) as client:
            assert (await client.get("/api/agent")).status_code == 401
            assert (await client.post("/api/agent/offer", json={})).status_code == 401
            assert (await client.patch("/api/agent/offer", json={})).status_code == 401
            assert (await client.get("/api/agent", headers=KEY)).status_code == 200
            token = (await client.post("/v1/tokens", headers=KEY)).json()["token"]
            assert (await client.post(f"/api/agent/offer?token={token}", json={})).status_code == 400
            assert (await client.post(f"/api/agent/offer?token={token}", json={})).status_code == 400  # still good
            found = {"pc_id": "unknown", "candidates": []}
            assert (await client.patch(f"/api/agent/offer?token={token}", json=found)).status_code == 400
            assert (await client.patch(f"/api/agent/offer?token={token}", json=found)).status_code == 401
        async with calling(agent.url, headers=KEY) as caller:
            await caller.ask("Hello.")


async def test_a_call_beyond_the_limit_is_refused_and_an_ended_call_frees_its_place() -> None:
    async with running_agent(calls=1) as agent:
        async with calling(agent.url):
            with pytest.raises(ConnectionRefusedError, match=r"503.*takes 1 calls at once"):
                async with calling(agent.url):
                    pass
        await until(lambda: agent.calls == 0)
        async with calling(agent.url):
            assert await agent.metric("agent_tts_agent_calls") == 1


async def test_a_caller_who_reconnects_names_the_call_that_it_has_lost() -> None:
    """As Pipecat's client in JavaScript does. Mutation: the lost call keeps its place, and the new one is refused."""
    async with running_agent(calls=1) as agent, calling(agent.url):
        (lost,) = agent.server.calls._peers
        async with Caller() as again, httpx.AsyncClient(base_url=agent.url, timeout=20) as client:
            body = {"sdp": await again.offer(), "type": "offer", "pc_id": lost, "restart_pc": True}
            reply = await client.post("/api/agent/offer", json=body)
            assert (reply.status_code, list(agent.server.calls._peers)) == (200, [reply.json()["pc_id"]])
            await again.accept(reply.json())
            assert agent.calls == 1


async def test_candidates_are_added_up_to_a_number_and_those_that_no_browser_sends_are_refused() -> None:
    """All messages of a call count together, with or without candidates that can be used."""
    async with running_agent() as agent, httpx.AsyncClient(base_url=agent.url, timeout=20) as client:
        async with calling(agent.url):
            (pc_id,) = agent.server.calls._peers

            async def add(*lines: str, to: str = pc_id) -> tuple[int, str]:
                found = [{"candidate": line, "sdp_mid": "0", "sdp_mline_index": 0} for line in lines]
                reply = await client.patch("/api/agent/offer", json={"pc_id": to, "candidates": found})
                return reply.status_code, reply.text

            assert (await add("candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host"))[0] == 204
            assert (await add(""))[0] == 204
            line = "candidate:1 1 udp 2130706431 127.0.0.1 50001 typ host"
            index: dict[str, Any] = {"sdp_mline_index": 0}
            for place in ({"sdp_mid": None}, {"sdp_mid": None} | index, {"sdp_mid": "0", "sdp_mline_index": None}, {}):
                body = {"pc_id": pc_id, "candidates": [{"candidate": line} | place]}
                assert (await client.patch("/api/agent/offer", json=body)).status_code == 204, place
            assert (await add("", to="x"))[0] == 400
            for lines, said in CANDIDATES:
                status, text = await add(*lines)
                assert (status, said in text) == (400, True), said
        await until(lambda: not agent.server.calls._peers)
        async with calling(agent.url):
            (pc_id,) = agent.server.calls._peers
            lines = [f"candidate:1 1 udp 1 {number}.local 9 typ host" for number in range(MAX_CANDIDATES - 1)]
            assert [(await add(*each, to=pc_id))[0] for each in (lines, [], [])] == [204, 204, 400]


async def test_a_caller_that_vanishes_is_dropped_within_seconds() -> None:
    """Pings stop, without a close and without ICE.

    Mutation: `_presence` returns None.
    """
    async with running_agent() as agent, calling(agent.url) as caller:
        present(caller._pinger).cancel()
        await until(lambda: agent.calls == 0, 8)


async def test_a_caller_that_never_connects_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_tts.agent.calls.CONNECT_S", 1.0)
    caller = Caller()
    async with running_agent() as agent, httpx.AsyncClient(base_url=agent.url, timeout=20) as client:
        reply = await client.post("/api/agent/offer", json={"sdp": await caller.offer(), "type": "offer"})
        assert reply.status_code == 200
        assert agent.calls == 1
        await until(lambda: agent.calls == 0, 8)
        await caller.close()


async def test_the_node_ends_its_calls_when_it_stops() -> None:
    async with running_agent() as agent, calling(agent.url) as caller:
        await caller.ask("Hello.")
        async with asyncio.timeout(10):
            await agent.server.close()
        assert agent.calls == 0


async def test_a_call_that_is_ended_before_its_first_step_leaves_nothing() -> None:
    caller = Caller()
    async with running_agent() as agent:
        calls = agent.server.calls
        await calls.offer(BeginCall(await caller.offer(), None, None, None, None, None, None))
        (call,) = calls._peers.values()
        await calls.close()
        assert (agent.calls, calls._peers) == (0, {})
        assert call.connection.pc.connectionState == "closed"
        await caller.close()


@pytest.mark.slow
async def test_the_voice_can_be_changed_during_a_call() -> None:
    async with running_agent() as agent, calling(agent.url) as caller:
        caller.type("Hello.")
        await caller.message("bot-stopped-speaking")
        caller.send("client-message", {"t": "voice", "d": {"voice": "de"}})
        await asyncio.sleep(0.3)
        told = len(caller.messages)
        caller.type("Hello.")
        await caller.own("turn", caller.messages[told - 1][0] + 0.001)
        caller.send("client-message", {"t": "heard", "d": {"ms": 120}})
        caller.send("client-message", {"t": "silent", "d": {"ms": "long"}})
        caller.send("client-message", {"t": "dance", "d": {}})
        await caller.message("error-response")
        assert not caller.of("error")
        caller.send("client-message", {"t": "voice", "d": {"voice": "nobody"}})
        assert "voice" in (await caller.message("error"))["data"]["error"]
        assert await agent.metric("agent_tts_agent_page_seconds_count") == 1


@pytest.mark.slow
def test_a_front_whose_calls_run_elsewhere_needs_no_pipecat() -> None:
    program = "import agent_tts.agent.relay, sys; print('pipecat' in sys.modules, 'onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


async def test_a_calls_models_are_gone_with_it() -> None:
    """They are in cycles of Pipecat's, which a node collects seldom. Mutation: `run` dismantles no pipeline."""
    with uncollected():
        async with running_agent(stt={"kind": "scripted"}) as agent:
            async with calling(agent.url):
                detectors, loaded = len(models()), sessions()
                assert detectors
                async with calling(agent.url):
                    assert (len(models()), sessions()) == (2 * detectors, loaded)  # what is loaded is shared
            await until(lambda: agent.calls == 0)
            await asyncio.sleep(LEFT_S + 1)
            assert not models()


def sessions() -> int:
    return sum(type(found).__name__ == "InferenceSession" for found in gc.get_objects())


def models() -> list[object]:
    kinds = (SileroVADAnalyzer, LocalSmartTurnAnalyzerV3)
    return [found for found in gc.get_objects() if issubclass(type(found), kinds)]  # proxies may be of what is gone
