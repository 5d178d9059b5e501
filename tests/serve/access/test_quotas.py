"""What the holder of a named key may use, and how it shows."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from agent_tts.serve.access.fleet_counts import MAX_DEBT, Batch, Counts, spend
from agent_tts.serve.token_bucket import TokenBucket
from tests.fronts import Fronts, running_fronts
from tests.support import until
from tests.wire import wire

pytestmark = pytest.mark.node

SHOP, DESK = {"X-API-Key": "sesame-shop"}, {"X-API-Key": "sesame-desk"}
TEXT = "forty characters of text, to be counted."


def keys(**shop: object) -> dict[str, Any]:
    return {"auth": {"keys": {"shop": {"key": "sesame-shop", **shop}, "desk": {"key": "sesame-desk"}}}}


async def say(node: Fronts, front: int, key: dict[str, str], text: str = TEXT) -> httpx.Response:
    async with httpx.AsyncClient(headers=key) as http:
        return await http.post(f"{node.fronts[front].url}/v1/audio/speech", json={"input": text})


def value(node: Fronts, name: str, front: int = 0, **labels: str) -> float:
    return node.fronts[front].node.metrics.registry.get_sample_value(f"agent_tts_key_{name}", labels) or 0.0


async def test_a_fifth_caller_of_a_service_with_one_key_is_served() -> None:
    async with running_fronts(count=1, **keys()) as node, AsyncExitStack() as callers:
        for _ in range(12):
            peer = await callers.enter_async_context(wire(node.fronts[0].ws_url, additional_headers=SHOP))
            assert (await peer.receive() or {})["type"] == "session.created"
        assert value(node, "sessions", key="shop") == 12
        assert value(node, "sessions", key="desk") == 0


async def test_a_refusal_names_the_setting_and_counts_by_the_name_of_the_key() -> None:
    async with running_fronts(**keys(sessions=1)) as node, wire(node.fronts[0].ws_url, additional_headers=SHOP):
        refused = await say(node, 1, SHOP)
        assert refused.status_code == 503
        assert "(auth.keys.shop.sessions)" in refused.text
        assert int(refused.headers["retry-after-ms"]) > 0
        assert value(node, "refused_total", front=1, key="shop", code="at_capacity") == 1
        assert (await say(node, 1, DESK)).status_code == 200


async def test_characters_count_on_all_fronts_and_what_has_begun_is_spoken_whole() -> None:
    async with running_fronts(**keys(characters_per_minute=60)) as node:
        said = [await say(node, front, SHOP) for front in (0, 1)]
        assert [answer.status_code for answer in said] == [200, 200]
        shares = [front.node.supervisor for front in node.fronts]
        await until(lambda: all(share is not None and share._free_at for share in shares))
        for front in (0, 1):
            refused = await say(node, front, SHOP)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rate_limited"
            assert "60 characters a minute (auth.keys.shop.characters_per_minute)" in refused.text
            assert 15 <= int(refused.headers["retry-after"]) <= 21  # 20 of 80 characters at 1 a second
            async with wire(node.fronts[front].ws_url, additional_headers=SHOP) as peer:
                await peer.receive()
                await peer.send("text.append", context_id="c", text="more")
                error = await peer.receive() or {}
                assert (error["code"], error["context_id"], error["fatal"]) == ("rate_limited", "c", False)
                assert error["retry_after_ms"] > 10_000
            assert (await say(node, front, DESK)).status_code == 200
        assert sum(value(node, "characters_total", front, key="shop") for front in (0, 1)) == 80
        assert sum(value(node, "refused_total", front, key="shop", code="rate_limited") for front in (0, 1)) == 4
        assert value(node, "audio_seconds_total", key="shop") == value(node, "audio_seconds_total", key="desk") > 1


async def test_a_context_that_has_begun_may_go_on_for_some_minutes_worth() -> None:
    """Then its text is refused: otherwise one context, begun in time, would speak for hours."""
    async with running_fronts(count=1, **keys(characters_per_minute=10)) as node:
        async with wire(node.fronts[0].ws_url, additional_headers=SHOP) as peer:
            await peer.receive()
            for _ in range(9):
                await peer.send("text.append", context_id="c", text="word ")
            refused = await peer.until("error")
            assert (refused["code"], refused["context_id"]) == ("rate_limited", "c")
            assert 0 < refused["retry_after_ms"] <= 60_000
            await peer.send("context.end", context_id="c")
            done = await peer.until("context.done")
            assert done["reason"] == "end"
            assert value(node, "characters_total", key="shop") == 10 * (1 + MAX_DEBT)


async def test_a_burst_of_texts_is_refused_before_they_begin() -> None:
    """Texts that are longer than what is left, of requests that all begin with characters left."""
    async with running_fronts(count=1, **keys(characters_per_minute=20)) as node:
        answers = await asyncio.gather(*(say(node, 0, SHOP, 40 * "x") for _ in range(20)))
        assert sorted(answer.status_code for answer in answers) == [200] + 19 * [429]
        waits_s = {int(answer.headers["retry-after"]) for answer in answers if answer.status_code == 429}
        assert waits_s == {120}  # for 20 characters, after 40 of which 20 were there
        assert value(node, "characters_total", key="shop") == 40


async def test_a_text_that_is_too_long_for_its_key_is_refused_for_good() -> None:
    async with running_fronts(count=1, **keys(characters_per_minute=20)) as node:
        refused = await say(node, 0, SHOP, 81 * "x")
        assert refused.status_code == 429
        assert "send at most 80 at once" in refused.text
        assert "retry-after" not in refused.headers
        assert (await say(node, 0, SHOP, 80 * "x")).status_code == 200


async def test_nobody_is_locked_out_for_longer_than_some_minutes() -> None:
    """Whatever all fronts and nodes have spoken before they knew of each other."""
    bucket = TokenBucket(1_000 / 60, 1_000, 0.0)
    assert spend(bucket, 0.0, 1_900_000, 1_000) == 60 * MAX_DEBT
    assert bucket.left(60.0 * MAX_DEBT) == pytest.approx(0)
    counts = Counts()
    assert counts.exchange(Batch("n", spent=[("k", 1_900_000, 1_000)]), 0)[1] == [60_000 * MAX_DEBT]
