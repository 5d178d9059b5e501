"""Which connection gives way: the table's rules, and a node whose places strangers have taken."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agent_tts.errors import AtCapacity
from agent_tts.serve import connections
from agent_tts.serve.connections import STRANGERS, ConnectionTable, Standing
from agent_tts.serve.transports.uvicorn_protocols import SPARE_CONNECTIONS
from tests.examples import examples
from tests.support import RunningNode, running_node, until
from tests.wire import wire

ROOM = STRANGERS + 4


def full(*first: Standing) -> ConnectionTable[str]:
    """A table without room: connections "0", "1"... of these standings, then new ones."""
    table: ConnectionTable[str] = ConnectionTable(ROOM)
    for number in range(ROOM):
        name = str(number)
        assert table.enter(name) is None
        if number >= len(first):
            continue
        if first[number] in (Standing.IDLE_CLIENT, Standing.BUSY_CLIENT):
            assert table.recognise(name) is None
        if first[number] in (Standing.BUSY_STRANGER, Standing.BUSY_CLIENT):
            table.busy(name)
        elif first[number] != Standing.NEW_STRANGER:
            table.idle(name)
    return table


def gone(table: ConnectionTable[str], count: int) -> list[str]:
    """What gives way to so many newcomers."""
    return [leaving[0] for number in range(count) if (leaving := table.enter(f"newcomer {number}"))]


def test_idle_strangers_give_way_first_and_the_one_that_is_idle_longest_among_them() -> None:
    table = full(Standing.BUSY_CLIENT, Standing.IDLE_CLIENT, *[Standing.IDLE_STRANGER] * 3, Standing.BUSY_STRANGER)
    table.busy("2")
    table.idle("2")
    assert gone(table, 3) == ["3", "4", "2"]


def test_then_new_ones_and_busy_strangers_at_last() -> None:
    table = full(Standing.BUSY_STRANGER, Standing.IDLE_CLIENT)
    assert gone(table, 2) == ["2", "3"]
    table = full(*[Standing.BUSY_STRANGER] * ROOM)
    assert gone(table, 1) == ["0"]
    assert gone(table, 2) == ["newcomer 0"] * 2


def test_a_stranger_that_shows_its_key_is_no_longer_one() -> None:
    table = full(Standing.IDLE_STRANGER, Standing.IDLE_STRANGER)
    assert table.recognise("0") is None
    assert gone(table, 1) == ["1"]


def test_idle_clients_give_way_when_strangers_have_only_their_own_places() -> None:
    table = full(Standing.BUSY_CLIENT, Standing.IDLE_CLIENT, Standing.IDLE_CLIENT, Standing.BUSY_CLIENT)
    assert table.recognise("9") == ("1", Standing.IDLE_CLIENT)
    table.idle("0")
    assert table.recognise("10") == ("2", Standing.IDLE_CLIENT)
    assert table.recognise("11") == ("0", Standing.IDLE_CLIENT)
    with pytest.raises(AtCapacity, match="4 connections at once"):
        table.recognise("12")
    assert table.recognise("11") is None


def test_where_it_is_crowded_a_newcomer_takes_a_place_before_the_table_is_full() -> None:
    table: ConnectionTable[str] = ConnectionTable(ROOM)
    table.enter("client")
    table.recognise("client")
    table.idle("client")
    assert table.enter("first", crowded=True) == ("client", Standing.IDLE_CLIENT)
    assert table.enter("second", crowded=True) is None  # nobody may give way
    assert [table.enter(str(number)) for number in range(STRANGERS - 2)] == [None] * (STRANGERS - 2)
    assert table.enter("third", crowded=True) == ("first", Standing.NEW_STRANGER)


class TableMachine(RuleBasedStateMachine):
    """Any sequence of events of connections."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.table: ConnectionTable[int] = ConnectionTable(6)
        self.alive: dict[int, Standing] = {}
        self.number = 0

    @rule(target=known, crowded=st.booleans())
    def enter(self, crowded: bool) -> int:
        before = dict(self.alive)
        self.number += 1
        self._left(self.table.enter(self.number, crowded=crowded), before)
        self.alive[self.number] = Standing.NEW_STRANGER
        return self.number

    def _left(self, leaving: tuple[int, Standing] | None, before: dict[int, Standing]) -> None:
        if leaving is None:
            return
        connection, standing = leaving
        assert before[connection] is standing
        assert standing is not Standing.BUSY_CLIENT
        if standing is Standing.IDLE_CLIENT:
            assert sum(one < Standing.IDLE_CLIENT for one in before.values()) <= 2
        else:
            assert standing == min(before.values())
        del self.alive[connection]

    @rule(connection=known)
    def recognise(self, connection: int) -> None:
        before = dict(self.alive)
        try:
            self._left(self.table.recognise(connection), before)
        except AtCapacity:
            assert list(before.values()).count(Standing.BUSY_CLIENT) == 4
            assert before[connection] < Standing.IDLE_CLIENT
            return
        if before.get(connection, Standing.BUSY_CLIENT) < Standing.IDLE_CLIENT:
            self.alive[connection] = Standing.BUSY_CLIENT

    @rule(connection=known, idle=st.booleans())
    def becomes(self, connection: int, idle: bool) -> None:
        (self.table.idle if idle else self.table.busy)(connection)
        if (standing := self.alive.get(connection)) is not None:
            kinds = ("IDLE", "BUSY")
            who = "CLIENT" if standing >= Standing.IDLE_CLIENT else "STRANGER"
            self.alive[connection] = Standing[f"{kinds[not idle]}_{who}"]

    @rule(connection=consumes(known))
    def remove(self, connection: int) -> None:
        self.table.remove(connection)
        self.alive.pop(connection, None)

    @invariant()
    def counts(self) -> None:
        assert len(self.table) == len(self.alive) <= 6
        clients = sum(standing >= Standing.IDLE_CLIENT for standing in self.alive.values())
        assert self.table.strangers == len(self.alive) - clients
        assert clients <= 4


def test_any_sequence_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGERS", 2)
    run_state_machine_as_test(TableMachine, settings=examples(200))


# ---------------------------------------------------------------- a node

KEY = "sesame"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def keep_alive(running: RunningNode, connections: AsyncExitStack) -> None:
    """A connection without a key, whose request is answered."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    connections.callback(writer.close)
    writer.write(HEALTH)
    assert b" 200 " in await reader.readuntil(b"\r\n\r\n")


@pytest.mark.node
async def test_strangers_that_keep_their_connections_turn_nobody_away() -> None:
    """With uvicorn's limit, everybody gets a plain 503: key holders, /health and /ready."""
    limits = {"connections": 8, "sessions_per_key": 8}
    async with running_node(auth={"api_keys": [KEY]}, limits=limits) as running, AsyncExitStack() as strangers:
        async with httpx.AsyncClient(base_url=running.url, headers={"X-API-Key": KEY}) as http:
            assert (await http.get("/v1/models")).status_code == 200  # an idle client
            async with wire(running.ws_url, additional_headers={"X-API-Key": KEY}) as peer:
                await peer.until("session.created")
                for _ in range(8 + SPARE_CONNECTIONS + 50):
                    await keep_alive(running, strangers)
                assert len(running.server.server_state.connections) <= 8 + SPARE_CONNECTIONS
                await peer.send("ping", t=1)
                await peer.until("pong")
                assert (await http.get("/v1/models")).status_code == 200
                for path in ("/health", "/ready"):
                    async with httpx.AsyncClient(base_url=running.url) as newcomer:
                        assert (await newcomer.get(path)).status_code == 200
                metrics = (await http.get("/metrics")).text
        given_way = 'agent_tts_connections_given_way_total{standing="%s"} '
        assert float(metrics.partition(given_way % "idle_stranger")[2].split()[0]) >= 50
        assert given_way % "idle_client" + "0.0" in metrics
        await strangers.aclose()
        await until(lambda: not running.server.server_state.connections)


@pytest.mark.node
async def test_clients_without_a_place_are_refused_in_the_shape_of_their_api(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All clients' places are busy: the refusal says so and when to try again; /health and /ready are answered."""
    monkeypatch.setattr(connections, "STRANGERS", SPARE_CONNECTIONS)
    async with running_node(auth={"api_keys": [KEY]}, limits={"connections": 1}) as running:
        async with wire(running.ws_url, additional_headers={"X-API-Key": KEY}) as peer:
            await peer.until("session.created")
            async with httpx.AsyncClient(base_url=running.url, headers={"X-API-Key": KEY, "xi-api-key": KEY}) as http:
                refused = await http.get("/v1/models")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert refused.json()["error"]["code"] == "at_capacity"
                eleven = await http.post("/v1/text-to-speech/nova", json={"text": "hello"})
                assert (eleven.status_code, eleven.headers["retry-after"]) == (503, "1")
                assert "detail" in eleven.json()
                for path in ("/health", "/ready"):
                    assert (await http.get(path)).status_code == 200
            async with wire(running.ws_url, additional_headers={"X-API-Key": KEY}) as late:
                assert (await late.until("error"))["code"] == "at_capacity"
            url = running.url.replace("http", "ws", 1) + "/v1/text-to-speech/None/stream-input"
            with pytest.raises(InvalidStatus) as denied:
                await connect(url, additional_headers={"xi-api-key": KEY}, proxy=None)
            assert denied.value.response.status_code == 503
            assert json.loads(denied.value.response.body or b"")["error"]["code"] == "at_capacity"
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]
