"""Which connection gives way: the table's rules, and a node whose places strangers have taken."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agent_tts.errors import AtCapacity
from agent_tts.serve import connections
from agent_tts.serve.connections import ConnectionTable, Standing
from agent_tts.serve.transports.uvicorn_protocols import SPARE_CONNECTIONS
from tests.examples import examples
from tests.support import RunningNode, running_node, until
from tests.wire import wire

ROOM, OWN = 6, 2  # places in all, and those that clients do not get


class TableMachine(RuleBasedStateMachine):
    """Any sequence of events of connections, beside what they are, the one that is it longest first."""

    known = Bundle("known")

    def __init__(self) -> None:
        super().__init__()
        self.table: ConnectionTable[int] = ConnectionTable(ROOM)
        self.alive: dict[int, Standing] = {}
        self.number = 0

    def become(self, connection: int, standing: Standing) -> None:
        self.alive.pop(connection, None)
        self.alive[connection] = standing

    def leaves(self, *choices: Standing) -> tuple[int, Standing] | None:
        """The first of these that there are gives way, and of them the one that is it longest."""
        for standing in choices:
            for connection, own in self.alive.items():
                if own is standing:
                    del self.alive[connection]
                    return connection, standing
        return None

    @property
    def strangers(self) -> int:
        return sum(standing < Standing.IDLE_CLIENT for standing in self.alive.values())

    @rule(target=known, crowded=st.booleans())
    def enter(self, crowded: bool) -> int:
        self.number += 1
        leaving = None
        if crowded or len(self.alive) == ROOM:
            strangers = Standing.IDLE_STRANGER, Standing.NEW_STRANGER, Standing.BUSY_STRANGER
            leaving = self.leaves(*(strangers if self.strangers >= OWN else [Standing.IDLE_CLIENT]))
        assert self.table.enter(self.number, crowded=crowded) == leaving
        self.become(self.number, Standing.NEW_STRANGER)
        return self.number

    @rule(connection=known)
    def recognise(self, connection: int) -> None:
        leaving = None
        if self.alive.get(connection, Standing.BUSY_CLIENT) < Standing.IDLE_CLIENT:
            if len(self.alive) - self.strangers == ROOM - OWN:
                leaving = self.leaves(Standing.IDLE_CLIENT)
                if leaving is None:
                    with pytest.raises(AtCapacity, match=r"4 connections at once \(limits\.connections\)"):
                        self.table.recognise(connection)
                    return
            self.become(connection, Standing.BUSY_CLIENT)
        assert self.table.recognise(connection) == leaving

    @rule(connection=known, idle=st.booleans())
    def becomes(self, connection: int, idle: bool) -> None:
        (self.table.idle if idle else self.table.busy)(connection)
        if (standing := self.alive.get(connection)) is not None:
            who = "CLIENT" if standing >= Standing.IDLE_CLIENT else "STRANGER"
            self.become(connection, Standing[f"{'IDLE' if idle else 'BUSY'}_{who}"])

    @rule(connection=consumes(known))
    def remove(self, connection: int) -> None:
        self.table.remove(connection)
        self.alive.pop(connection, None)

    @invariant()
    def counts(self) -> None:
        assert len(self.table) == len(self.alive) <= ROOM
        assert self.table.strangers == self.strangers >= len(self.alive) - (ROOM - OWN)


def test_any_sequence_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STRANGERS", OWN)
    run_state_machine_as_test(TableMachine, settings=examples(400))


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
        async with running.http(headers={"X-API-Key": KEY}) as http:
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
                    async with running.http() as newcomer:
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
            async with running.http(headers={"X-API-Key": KEY, "xi-api-key": KEY}) as http:
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
