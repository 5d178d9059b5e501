"""The pure rules of a cluster: how many nodes, what their metrics say, who is known and for how long."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest

from agent_tts import cli
from agent_tts.cli.cluster import _address
from agent_tts.cluster.directory import FORGET_S, Directory, NodeAddress, address_of
from agent_tts.cluster.machine import (
    AGAIN_S,
    KEEP_S,
    MAX_LOG_BYTES,
    UNATTENDED_S,
    WHOLE_S,
    Known,
    Machine,
    Unattended,
    _addresses,
    _read,
    is_taken,
)
from agent_tts.cluster.scaling import Figures, Load, decide, nodes_wanted
from agent_tts.config.settings import ENV_PREFIX
from agent_tts.engine_info import EngineInfo
from agent_tts.errors import SettingsError
from agent_tts.messages import EnginePong
from agent_tts.serve.telemetry.metrics import EngineMetrics, Metrics
from tests.support import ended, logged


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [
        ([Load(0, 8)], 1),
        ([Load(6, 8)], 1),
        ([Load(7, 8)], 2),  # fewer than a quarter are free
        ([Load(8, 8, waiting=9)], 3),
        ([Load(2, 8), Load(1, 8)], 1),
        ([Load(6, 8), Load(6, 8)], 2),
        ([Load(1, 8, first_audio_s=0.5), Load(1, 8)], 3),  # slow, whatever the slots say
        ([Load(0, 100), Load(120, 300)], 1),
        ([], 4),  # nobody has told anything yet: those that there are
    ],
)
def test_so_many_nodes_are_wanted(loads: list[Load], wanted: int) -> None:
    assert nodes_wanted(loads, now=4) == wanted


def test_ray_serves_metrics_are_read_by_replica() -> None:
    told = {"used": {"a": 7.0, "b": 8.0}, "slots": {"a": 8.0, "b": 8.0, "starting": 0.0}, "waiting": {"b": 3.0}}
    context = SimpleNamespace(aggregated_metrics=told, target_num_replicas=3)
    assert decide(context) == (3, {})
    assert decide(SimpleNamespace(aggregated_metrics=None, target_num_replicas=3)) == (3, {})


def test_a_nodes_load_is_read_from_its_metrics() -> None:
    metrics, figures = Metrics(), Figures()
    engines = EngineMetrics(metrics.registry)
    engines.started(0, EngineInfo("tone", "tone", 4, (), "a", {}))
    engines.pulse(0, EnginePong(3, 1, 2, 0.0))
    for seconds in (0.01, 0.02):
        metrics.ttfa.labels("websocket").observe(seconds)
    first = figures.read(generate_latest(metrics.registry).decode())
    assert (first.slots, first.used, first.waiting) == (4, 1, 2)
    assert 0.02 <= first.first_audio_s <= 0.05
    metrics.ttfa.labels("websocket").observe(0.9)
    assert figures.read(generate_latest(metrics.registry).decode()).first_audio_s >= 0.9  # of the new request alone
    assert figures.read(generate_latest(metrics.registry).decode()).first_audio_s == 0


def test_a_door_keeps_nodes_for_a_while_after_the_directory_is_gone() -> None:
    known, node, other = Known(), NodeAddress("a", "10.0.0.1", 8101), NodeAddress("b", "10.0.0.2", 8101)
    assert known.hear([other, node], 0) == [node, other]
    assert known.hear([node], KEEP_S - 1) == [node, other]
    assert known.hear([], KEEP_S + 1) == [node]


def test_a_node_that_no_replica_tells_of_ends_after_a_while() -> None:
    unattended, late = Unattended(), UNATTENDED_S + 1
    assert unattended.hear({"a", "elsewhere"}, {"a", "b", "c"}, 0) == []
    assert unattended.hear({"a", "b"}, {"a", "b", "c"}, UNATTENDED_S) == []
    assert unattended.hear({"a"}, {"a", "b", "c"}, late) == ["c"]  # of b somebody has told
    assert unattended.hear({"a"}, {"a", "b", "c"}, late + 1) == []  # a second signal would end its calls
    assert unattended.hear({"a"}, {"a", "b"}, 2 * late) == ["b"]


def test_a_node_that_tells_nothing_is_forgotten() -> None:
    now = 0.0
    directory = Directory(lambda: now)
    report = {"name": "a", "host": "10.0.0.1", "port": 8101, "version": "1", "ray_node": "r", "state": "ok"}
    directory.tell(report)
    now = FORGET_S - 1
    assert [node["name"] for node in directory.nodes()] == ["a"]
    now = FORGET_S + 1
    assert directory.nodes() == []
    directory.tell(report | {"of_a_newer_version": 1})
    assert address_of(*directory.nodes()) == NodeAddress("a", "10.0.0.1", 8101, "1")


class FakeDoor:
    """What a machine tells its door."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, bool]] = []
        self.nodes: list[NodeAddress] = []

    def tell(self, part: str, is_whole: bool) -> None:
        self.parts.append((part, is_whole))

    async def start(self) -> None:
        self.closed = False

    async def update(self, nodes: list[NodeAddress]) -> None:
        self.nodes = nodes

    async def close(self, drain_s: float) -> None:
        self.closed = True


async def test_a_part_of_a_machine_that_ends_is_told_and_started_again(tmp_path: Path) -> None:
    """Mutation: a fault ends the task; then the door learns of no new node any more, and nobody is told."""
    door, starts = FakeDoor(), 0

    async def part() -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        await asyncio.Event().wait()

    machine = Machine(tmp_path, "127.0.0.1:1", [], door, None)  # pyrefly: ignore[bad-argument-type]
    task = asyncio.create_task(machine._supervise("watching", part))
    await asyncio.sleep(2 * AGAIN_S + 1)
    assert (starts, door.parts) == (3, [("watching", False), ("watching", False)])
    await asyncio.sleep(WHOLE_S)
    assert door.parts[2:] == [("watching", True)]
    await ended(task)


async def test_on_a_full_disk_the_door_still_learns_of_nodes(tmp_path: Path) -> None:
    """The folder is gone here: no file can be written in it either."""
    door, node = FakeDoor(), NodeAddress("a", "10.0.0.1", 8101)
    missing = tmp_path / "missing"
    machine = Machine(missing, "127.0.0.1:1", [], door, None, missing / "targets")  # pyrefly: ignore[bad-argument-type]
    await machine._tell_door([node])
    assert door.nodes == [node]


@pytest.mark.node
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), None])
async def test_a_greeting_that_cannot_be_written_ends_no_machine(tmp_path: Path, error: OSError | None) -> None:
    """Any other fault of the start closes the door: otherwise HAProxy keeps its port."""
    door = FakeDoor()
    machine = Machine(tmp_path, "127.0.0.1:1", [], door, None)  # pyrefly: ignore[bad-argument-type]
    machine._supervise = lambda *_: asyncio.Event().wait()  # pyrefly: ignore[bad-assignment]

    def started() -> None:
        if error is None:
            raise ValueError("a fault")
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        raise error

    if error is None:
        with pytest.raises(ValueError, match="a fault"):
            await machine.run(started)
    else:
        await machine.run(started)
    assert (tmp_path / "head").read_text() == "127.0.0.1:1"
    assert door.closed


@pytest.mark.node
async def test_a_sighup_ends_no_machine(tmp_path: Path) -> None:
    """It ends this process where it is not handled."""
    machine = Machine(tmp_path, "127.0.0.1:1", [], FakeDoor(), None)  # pyrefly: ignore[bad-argument-type]
    machine._supervise = lambda *_: asyncio.Event().wait()  # pyrefly: ignore[bad-assignment]

    def started() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    with logged("INFO") as log:
        await machine.run(started)
    assert "SIGHUP: a cluster keeps the settings of its start" in "".join(log)


@pytest.mark.parametrize(
    ("words", "ends"), [("cluster start", False), ("cluster join", False), ("cluster status", True)]
)
def test_a_sighup_before_a_machine_runs_ends_it_not(words: str, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(cli, "enter", lambda *, hangs_up: asked.append(hangs_up))
    monkeypatch.setattr(sys, "argv", ["agent-tts", *words.split(), "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert asked == [ends]


async def test_a_file_for_others_that_is_no_text_is_written(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.write_bytes(b"\xff")
    machine = Machine(tmp_path, "127.0.0.1:1", [], FakeDoor(), None, targets)  # pyrefly: ignore[bad-argument-type]
    await machine._tell_door([NodeAddress("a", "10.0.0.1", 8101)])
    assert targets.read_text() == '[{"targets": ["10.0.0.1:8101"]}]'


@pytest.mark.node
@pytest.mark.real_time
@pytest.mark.parametrize("prefix", [ENV_PREFIX, ENV_PREFIX.lower()])
async def test_keys_in_the_environment_are_not_for_rays_processes(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{prefix}AUTH__API_KEYS", "secret")
    machine = Machine(tmp_path, "127.0.0.1:1", [], FakeDoor(), None)  # pyrefly: ignore[bad-argument-type]
    async with machine._running("agent_tts.cluster.watch", "127.0.0.1:1") as process:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()  # noqa: ASYNC240
    assert b"PATH=" in environment
    assert b"secret" not in environment


def test_what_one_node_tells_hides_no_other(tmp_path: Path) -> None:
    """Mutation: a fault leaves `_addresses`; then the door learns of no node any more."""
    right = {"name": "a", "host": "10.0.0.1", "port": 8101, "version": "1"}
    wrong = [{}, right | {"name": "a b"}, right | {"host": "localhost"}, right | {"port": None}, right | {"host": None}]
    newer = right | {"name": "b", "of_a_newer_version": 1}
    assert [node.name for node in _addresses([*wrong, right, newer])] == ["a", "b"]
    (tmp_path / "nodes.json").write_text(json.dumps([*wrong, right, newer]))
    assert [node.name for node in _read(tmp_path / "nodes.json")] == ["a", "b"]


@pytest.mark.node
@pytest.mark.parametrize("head", ["no.such.host.invalid", "10.0..1", "127.0.0.1"])
def test_nobody_listens_where_no_name_leads(head: str) -> None:
    assert not is_taken(head, 1)


@pytest.mark.node
@pytest.mark.real_time
async def test_what_a_part_complains_of_fills_no_disk(tmp_path: Path) -> None:
    log = tmp_path / "watch.log"
    log.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    machine = Machine(tmp_path, "127.0.0.1:1", [], FakeDoor(), None)  # pyrefly: ignore[bad-argument-type]
    async with machine._running("agent_tts.cluster.watch", "127.0.0.1:1"):
        assert log.stat().st_size < MAX_LOG_BYTES


def test_a_name_of_loopback_is_its_address() -> None:
    """The door would be open on all interfaces, and the node would refuse to start without keys."""
    assert _address("localhost") == "127.0.0.1"
    assert _address("127.0.0.2") == "127.0.0.2"
    for wrong in ("no.such.host.invalid", "10.0..1"):
        with pytest.raises(SettingsError, match="no such address"):
            _address(wrong)


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": "a b"}, {"name": "a" * 64}, {"host": "localhost"}, {"port": 0}, {"port": 65_536}]
)
def test_what_cannot_be_reached_is_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"name": "one", "host": "::1", "port": 8000}
    NodeAddress(**right)
    with pytest.raises(ValueError, match=r"is not|does not"):
        NodeAddress(**right | wrong)
