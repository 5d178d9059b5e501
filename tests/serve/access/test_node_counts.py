"""A node with two fronts is one node to its clients, whichever front they reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tts.agent import relay, server
from agent_tts.config.settings import Settings
from agent_tts.engine_info import Model
from agent_tts.ipc.channel import NoAnswer
from agent_tts.ipc.front_messages import Claim, Token
from agent_tts.serve.access.ledger import MAX_UPLOADS
from agent_tts.serve.access.supervisor_client import ANSWER_S, SupervisorClient, front_of
from agent_tts.serve.app import Extension
from agent_tts.serve.telemetry.pages import NodePages
from tests.agent.caller import Caller, calling
from tests.fronts import Fronts, running_fronts
from tests.rtc_peer import RtcPeer, connected
from tests.support import ended, figures, passes, present, recorded, until, with_models
from tests.wire import speak, wire

pytestmark = pytest.mark.node

KEYS: dict[str, Any] = {"auth": {"api_keys": ["one", "two"]}}
DESIGN = Model("design-tiny", "designed", "nowhere")
AGENT = {"stt": {"kind": "none"}, "llm": {"base_url": "http://127.0.0.1:9/v1"}}
ONE, TWO = {"X-API-Key": "one"}, {"X-API-Key": "two"}


@pytest.fixture
async def node() -> AsyncIterator[Fronts]:
    async with running_fronts() as made:
        yield made


def urls(node: Fronts) -> list[str]:
    return [front.ws_url for front in node.fronts]


async def greeting(url: str, **options: Any) -> str | None:
    """The type of the first message, or the code of the error that comes in its place."""
    async with wire(url, **options) as peer:
        first = await peer.receive()
        return None if first is None else first.get("code", first["type"])


# ---------------------------------------------------------------- counts


async def test_a_token_that_is_used_on_all_fronts_at_once_opens_one_session() -> None:
    async with running_fronts(**KEYS) as node, httpx.AsyncClient(headers=ONE) as http:
        for _ in range(10):
            token = (await http.post(f"{node.fronts[0].url}/v1/tokens")).json()["token"]
            found = await asyncio.gather(*(greeting(f"{url}?token={token}") for url in urls(node) * 2))
            assert sorted(map(str, found)) == ["session.created"] + 3 * ["unauthorized"]


async def test_sessions_of_a_key_count_on_all_fronts() -> None:
    async with running_fronts(limits={"sessions_per_key": 2}, **KEYS) as node:
        first, second = urls(node)
        async with wire(first, additional_headers=ONE), wire(second, additional_headers=ONE) as peer:
            for url in urls(node):
                assert await greeting(url, additional_headers=ONE) == "at_capacity"
                assert await greeting(url, additional_headers=TWO) == "session.created"
            await peer.send("session.close")
            await until(lambda: node.fronts[1].node.guard.sessions == 0)
            assert await greeting(first, additional_headers=ONE) == "session.created"


async def test_a_front_that_dies_leaves_nothing_behind() -> None:
    async with running_fronts(limits={"connections": 2}) as node, wire(urls(node)[0]), wire(urls(node)[1]):
        assert await greeting(urls(node)[1]) == "at_capacity"
        await node.kill(0)
        assert await greeting(urls(node)[1]) == "session.created"


async def test_a_key_may_send_its_requests_to_one_front_or_to_all() -> None:
    async with running_fronts(limits={"requests_per_s": 4}, **KEYS) as node, httpx.AsyncClient(headers=ONE) as http:
        answers = [(await http.get(f"{node.fronts[0].url}/v1/models")).status_code for _ in range(18)]
        assert answers == [200] * 18  # of 20, and the other front has none
        rest = [(await http.get(f"{node.fronts[number % 2].url}/v1/models")).status_code for number in range(30)]
        assert 2 <= rest.count(200) <= 8  # some may have come meanwhile
        assert rest.count(429) == 30 - rest.count(200)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/audio/speech",
        "/v1/text-to-speech/v",
        "/tts/bytes",
        "/v1/speak",
        "/v1/vapi",
        "/v1/jambonz",
        "/v1/audio/voices",
    ],
)
async def test_every_vendors_clients_hear_of_a_full_key_by_status_headers_and_the_setting(path: str) -> None:
    async with running_fronts(limits={"requests_per_s": 0.2}, **KEYS) as node, httpx.AsyncClient(headers=ONE) as http:
        url = node.fronts[0].url
        assert (await http.get(f"{url}/v1/models")).status_code == 200
        for _ in range(2):  # the second is refused by the front alone
            refused = await http.post(f"{url}{path}", json={})
            assert refused.status_code == 429
            assert (refused.headers["retry-after"], int(refused.headers["retry-after-ms"]) > 4_000) == ("5", True)
            assert "limits.requests_per_s" in refused.text


# ---------------------------------------------------------------- without answers


def share_of(node: Fronts, number: int = 0) -> SupervisorClient:
    supervisor = present(node.fronts[number].node.supervisor)
    return supervisor


async def test_without_its_supervisor_a_front_refuses_new_sessions_and_goes_on_with_the_others() -> None:
    async with running_fronts() as node, wire(urls(node)[0]) as peer:
        await peer.until("session.created")
        with node.stopped():
            began = time.monotonic()
            assert await greeting(urls(node)[0]) == "at_capacity"
            assert time.monotonic() - began < ANSWER_S + 0.5
            await peer.say("t1", "it still speaks")
            assert (await peer.until("context.done"))["reason"] == "end"
            assert await readiness(node) == "unsupervised"
        await asyncio.sleep(ANSWER_S)
        assert await readiness(node) == "ok"
        assert await greeting(urls(node)[0]) == "session.created"
        await until(lambda: node.counts.ledger.counts.sessions == 1)
    assert node.counts.ledger.counts.sessions == 0


async def readiness(node: Fronts) -> str:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{node.fronts[0].url}/ready")
    status: str = answer.json()["status"]
    assert answer.status_code == (200 if status == "ok" else 503)
    return status


async def test_questions_do_not_pile_up_while_there_is_no_answer() -> None:
    """The channel counts a side that leaves 8 MB unread as hung, and running calls would end with it."""
    async with running_fronts(1) as node:
        with node.stopped():
            for _ in range(20):
                for refused in await asyncio.gather(
                    *(share_of(node).admit(Claim(0)) for _ in range(100)), return_exceptions=True
                ):
                    assert isinstance(refused, NoAnswer)
            share = share_of(node).channel
            assert share._calls <= 100 + 20
            assert len(share._unsent) == 0  # the kernel has room for them


async def test_an_answer_that_comes_too_late_counts_nothing() -> None:
    async with running_fronts(1) as node:
        token = Token("t", time.monotonic() + 60)
        with node.stopped(), pytest.raises(NoAnswer):
            await share_of(node).admit(Claim(1, "a", token, "calls"))
        await asyncio.sleep(ANSWER_S)
        assert node.counts.ledger.counts.sessions == 0
        await share_of(node).admit(Claim(2, "a", token, "calls"))  # the token is still good, and the place free


async def test_a_client_that_leaves_at_any_step_counts_nothing() -> None:
    async with running_fronts(1) as node:
        for steps in range(12):
            leaving = asyncio.create_task(share_of(node).admit(Claim(steps, "a")))
            await passes(steps)
            leaving.cancel()
            (found,) = await asyncio.gather(leaving, return_exceptions=True)
            if isinstance(found, int):
                share_of(node).release(steps)
        await until(lambda: node.counts.ledger.counts.sessions == 0)
        await share_of(node).admit(Claim(100, "a"))
        assert node.counts.ledger.counts.sessions == 1


# ---------------------------------------------------------------- sessions of another front


@pytest.mark.parametrize("fleet", [{}, {"node": "machine-1"}])
async def test_a_peer_is_closed_through_any_front(fleet: dict[str, str]) -> None:
    """The id of its session tells which has it, of which node."""
    async with running_fronts(fleet=fleet, **KEYS) as node, httpx.AsyncClient() as http:
        for number, front in enumerate(node.fronts):
            async with connected(front.url, ONE) as peer:
                assert front_of(peer.session_id) == number
                assert peer.session_id.startswith("machine-1." if fleet else f"{number}-")
                path = f"{node.fronts[1 - number].url}/v1/rtc/{peer.session_id}"
                assert (await http.delete(path)).status_code == 401
                assert (await http.delete(path, headers=TWO)).status_code == 404
                assert front.node.peers
                assert (await http.delete(path, headers=ONE)).status_code == 204
                assert not front.node.peers
                assert (await http.delete(path, headers=ONE)).status_code == 404


@pytest.mark.parametrize("session_id", ["7-0011223344556677", "1-00", "-", "0-", "x-1", "9999-1", "00112233"])
async def test_a_session_that_is_nowhere_is_not_found(node: Fronts, session_id: str) -> None:
    async with httpx.AsyncClient() as http:
        reply = await http.delete(f"{node.fronts[0].url}/v1/rtc/{session_id}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


async def test_a_front_that_stands_still_delays_only_its_own_sessions(node: Fronts) -> None:
    async with httpx.AsyncClient(timeout=20) as http:
        share = share_of(node, 1)
        loop = asyncio.get_running_loop()
        loop.remove_reader(share.channel._sock)
        reply = await http.delete(f"{node.fronts[0].url}/v1/rtc/1-0011223344556677")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "at_capacity")
        loop.add_reader(share.channel._sock, share.channel._read)


async def test_rtc_peers_are_limited_over_all_fronts() -> None:
    async with running_fronts(limits={"rtc_peers": 1}) as node, connected(node.fronts[0].url):
        peer = RtcPeer()
        async with httpx.AsyncClient() as http:
            offer = {"sdp": await peer.offer(), "type": "offer"}
            reply = await http.post(f"{node.fronts[1].url}/v1/rtc/offer", json=offer)
        await peer.close()
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "at_capacity")
        assert int(reply.headers["retry-after"]) >= 1


# ---------------------------------------------------------------- metrics


WEBSOCKET = (("carrier", "websocket"),)


async def test_one_page_has_what_all_fronts_have_done(node: Fronts) -> None:
    for count, url in enumerate(urls(node), 1):
        for _ in range(count):
            await speak(url, "some words to speak")
    async with wire(urls(node)[0]), wire(urls(node)[1]):
        first, second = await figures(node.fronts[0].url), await figures(node.fronts[1].url)
    for page in (first, second):
        assert page["agent_tts_contexts_total", (("carrier", "websocket"), ("reason", "end"))] == 3
        assert page["agent_tts_ttfa_seconds_count", WEBSOCKET] == 3
        assert page["agent_tts_ttfa_seconds_bucket", (*WEBSOCKET, ("le", "+Inf"))] == 3
        assert page["agent_tts_sessions", ()] == 2
        assert page["agent_tts_contexts_active", WEBSOCKET] == 0
    for number in "01":
        assert first["agent_tts_tasks", (("front", number),)] >= 0
        assert ("agent_tts_loop_lag_seconds_count", (("front", number),)) in first
        assert first["agent_tts_front_up", (("front", number),)] == 1
        assert first["agent_tts_front_starts_total", (("front", number),)] == 1
    created = {page["agent_tts_ttfa_seconds_created", WEBSOCKET] for page in (first, second)}
    assert len(created) == 1
    assert not any(name.startswith("agent_tts_engine") for name, _ in first)


async def test_counters_do_not_go_backwards_when_a_front_dies(node: Fronts) -> None:
    counted = ("agent_tts_contexts_total", (("carrier", "websocket"), ("reason", "end")))
    lag = ("agent_tts_loop_lag_seconds_count", (("front", "0"),))
    for url in urls(node):
        await speak(url, "some words")
    async with wire(urls(node)[0]):
        before = await figures(node.fronts[1].url)
        await node.kill(0)
    after = await figures(node.fronts[1].url)
    assert before["agent_tts_sessions", ()] == 1
    assert after["agent_tts_sessions", ()] == 0
    assert before[counted] == after[counted] == 2
    assert after[lag] >= before[lag]
    assert after["agent_tts_front_up", (("front", "0"),)] == 0
    for name, labels in before:
        if name.endswith(("_total", "_count", "_bucket", "_sum")):
            assert after[name, labels] >= before[name, labels], name


async def test_a_front_that_does_not_answer_is_told_and_counts_as_it_was(node: Fronts) -> None:
    await speak(urls(node)[0], "some words")
    before = await figures(node.fronts[1].url)
    share, loop = share_of(node, 0), asyncio.get_running_loop()
    loop.remove_reader(share.channel._sock)
    after = await figures(node.fronts[1].url)
    loop.add_reader(share.channel._sock, share.channel._read)
    assert after["agent_tts_front_up", (("front", "0"),)] == 0
    assert after["agent_tts_ttfa_seconds_count", WEBSOCKET] == before["agent_tts_ttfa_seconds_count", WEBSOCKET] == 1
    assert (await figures(node.fronts[1].url))["agent_tts_front_up", (("front", "0"),)] == 1


async def test_those_who_wait_for_a_page_get_the_same(node: Fronts, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 1 000 keys takes longer to make than to ask for: they would be made long after nobody waits."""
    made = recorded(monkeypatch, NodePages, "merged")
    pages = await asyncio.gather(*(share_of(node, number % 2).page() for number in range(20)))
    assert len({*pages}) <= len(made) <= 3
    await share_of(node).page()
    assert len(made) > 1


async def test_metrics_without_a_supervisor_are_refused_in_time(node: Fronts) -> None:
    async with httpx.AsyncClient(timeout=20) as http:
        with node.stopped():
            assert (await http.get(f"{node.fronts[0].url}/metrics")).status_code == 503


# ---------------------------------------------------------------- agent


async def test_a_call_gets_its_candidates_through_any_front() -> None:
    async with running_fronts(extensions=[server.extension] * 2, agent=AGENT, **KEYS) as node:
        caller = Caller()
        line = "candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host"
        async with httpx.AsyncClient(timeout=20) as http:
            offer = {"sdp": await caller.offer(), "type": "offer"}
            answer = (await http.post(f"{node.fronts[0].url}/api/agent/offer", json=offer, headers=ONE)).json()
            assert front_of(answer["pc_id"]) == 0
            found = {"pc_id": answer["pc_id"], "candidates": [{"candidate": line}]}
            url = f"{node.fronts[1].url}/api/agent/offer"
            assert (await http.patch(url, json=found, headers=TWO)).status_code == 400
            assert (await http.patch(url, json=found, headers=ONE)).status_code == 204
            bad = found | {"candidates": [{"candidate": "nonsense"}]}
            assert (await http.patch(url, json=bad, headers=ONE)).status_code == 400
        await caller.close()


async def test_calls_run_in_a_process_of_their_own_whichever_front_they_reach() -> None:
    """The fronts run no pipeline; signalling, limits and errors are as in one process."""
    parts: list[Callable[[Settings], Extension]] = [relay.extension, relay.extension, server.extension]
    agent = AGENT | {"calls": 2}
    async with running_fronts(2, extensions=parts, agent=agent, **KEYS) as node:
        first, second, calls = node.fronts
        async with httpx.AsyncClient(timeout=20, headers=ONE) as http:
            about = (await http.get(f"{first.url}/api/agent")).json()
            assert about["stt"]["kind"] == "none"
            assert about["tts"]["kind"] == "tone"
            bad = await http.post(f"{first.url}/api/agent/offer", json={"sdp": "v=0", "type": "offer"})
            assert (bad.status_code, bad.json()["error"]["code"]) == (400, "bad_message")
            token = (await http.post(f"{first.url}/v1/tokens")).json()["token"]
            async with calling(first.url, headers=ONE) as caller, calling(second.url, query=f"?token={token}") as other:
                for each in (caller, other):
                    each.type("Hello.")
                    await each.loud()
                assert node.counts.ledger.counts.taken("calls", 2) == 2
                reply = await http.post(f"{second.url}/api/agent/offer", json=await offer())
                assert (reply.status_code, reply.json()["error"]["code"]) == (503, "at_capacity")
            await until(lambda: node.counts.ledger.counts.taken("calls") == 0)
            assert calls.node.guard.sessions == first.node.guard.sessions == 0
            await node.kill(2)
            reply = await http.post(f"{first.url}/api/agent/offer", json=await offer())
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "at_capacity")
            assert "restarting" in reply.json()["error"]["message"]


async def offer() -> dict[str, str]:
    async with Caller() as caller:
        return {"sdp": await caller.offer(), "type": "offer"}


# ---------------------------------------------------------------- voices


async def test_new_voices_are_limited_over_all_fronts(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with (
        running_fronts(engine=with_models(DESIGN), voices={"folder": str(tmp_path)}) as node,
        httpx.AsyncClient() as http,
    ):
        first, second = (f"{front.url}/v1/audio/voices" for front in node.fronts)
        uploads = [asyncio.create_task(http.post(first, content=endless())) for _ in range(MAX_UPLOADS)]
        await until(lambda: node.counts.ledger.counts.taken("new voices") == MAX_UPLOADS)
        design = {"type": "prompt", "prompt": "a calm voice", "name": "calm"}
        assert (await http.post(second, json=design)).status_code == 503
        await ended(*uploads)
        await until(lambda: node.counts.ledger.counts.taken("new voices") == 0)
        answer = await http.post(second, json=design)
        assert answer.status_code == 200, answer.text
