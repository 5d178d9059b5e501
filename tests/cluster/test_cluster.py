"""A cluster as a user has it: processes of `agent-tts cluster`, real Ray, HAProxy, and nodes with the tone engine.

Every frame of every caller is counted. `make slow` runs the first; all of them are `make cluster-test`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import operator
import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import psutil  # pyrefly: ignore[untyped-import]
import pytest

import agent_tts
from agent_tts.cluster.machine import is_taken
from agent_tts.errors import AtCapacity
from tests.cli.process import is_running, run
from tests.cluster.machines import (
    ARGUMENTS,
    Caller,
    ClusterMachine,
    Listed,
    callers,
    free_port,
    hang_up,
    machines,
    until_led_to,
    until_listed,
    until_nodes,
)
from tests.support import until

pytestmark = [pytest.mark.node, pytest.mark.real_time, pytest.mark.timeout(300)]

SLOTS = "slots=4"


@pytest.mark.slow
async def test_it_grows_under_callers_and_shrinks_when_they_have_gone(tmp_path: Path) -> None:
    targets, metrics = tmp_path / "targets.json", free_port()
    async with machines(tmp_path, 1, SLOTS, idle_s=2, targets=targets, metrics_port=metrics) as (head, other):
        async with callers(await head.url(), 4) as first:
            began = time.monotonic()
            two = await until_nodes(head, 2)
            assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in head.nodes().values()} == {os.getpriority(0, 0)}
            print(f"the second node takes callers after {time.monotonic() - began:.1f} s")
            (second,) = set(two) - {caller.node for caller in first}
            await until_led_to(await other.url(), second)
            await assert_metrics_of_all(targets, {f"{each['host']}:{each['port']}" for each in two.values()})
            assert 'server="' in await page(f"127.0.0.1:{metrics}")
            assert_ray_is_closed(head)
            assert_ray_is_closed(other)
            async with callers(await other.url(), 2) as more:  # by the other machine's door
                assert {caller.node for caller in more} == {second}
                await hang_up(first)
                # One node is too many: whichever it is, it finishes its calls.
                left = await until_listed(head, lambda known: sum(each["state"] == "ok" for each in known.values()) < 2)
                print(f"of {second}, which speaks, and another, one stays: {left}")
                await hang_up(more)
            await until_nodes(head, 1)

        again = run("cluster", "start", *ARGUMENTS, "--folder", str(head.folder), "--head-port", "1")
        assert (again.returncode, b"is in a cluster already" in again.stderr) == (2, True), again.stderr
        port = head.arguments[1].partition("=")[2]
        again = run("cluster", "start", *ARGUMENTS, "--folder", str(tmp_path / "third"), "--head-port", port)
        assert (again.returncode, b"has its head at" in again.stderr) == (2, True), again.stderr
        stranger = (*ARGUMENTS, "--token", "guessed", "--folder", str(tmp_path / "third"))
        again = run("cluster", "join", f"127.0.0.1:{port}", *stranger)
        assert (again.returncode, b"the cluster has another token" in again.stderr) == (2, True), again.stderr
        assert b"no node is named nobody" in run("cluster", "drain", "nobody", "--folder", str(head.folder)).stderr


def assert_ray_is_closed(machine: ClusterMachine) -> None:
    """On loopback Ray listens there alone, and it has no metrics of its own, which need no token."""
    found = [
        psutil.Process(pid) for name in ("gcs_server", "raylet", "ray::", "dashboard") for pid in machine.ray(name)
    ]
    assert found
    ports = [one.laddr for each in found for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in ports} == {"127.0.0.1"}, ports
    assert not {address.port for address in ports} & {44_217, 44_227}


async def assert_metrics_of_all(targets: Path, wanted: set[str]) -> None:
    """Prometheus finds these nodes by the file, and they answer it."""
    await until(lambda: {*json.loads(targets.read_text())[0]["targets"]} == wanted, 10)
    for target in wanted:
        assert "agent_tts_slots_used" in await page(target)


async def page(target: str) -> str:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"http://{target}/metrics")).raise_for_status().text


@pytest.mark.cluster
async def test_a_node_that_is_killed_loses_its_own_callers_and_comes_back(tmp_path: Path) -> None:
    async with machines(tmp_path, 1, SLOTS, nodes=2) as (head, _):
        two = await until_nodes(head, 2)
        async with callers(await head.url(), 4, moves=True) as spoken_to:
            victims = [caller for caller in spoken_to if caller.node in head.nodes()]
            assert len(victims) == 2
            (killed, pid), *_ = head.nodes().items()
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            await asyncio.sleep(3)
            await hang_up(spoken_to)  # with `moves=True` they have gone on at the other node
            back = await until_nodes(head, 2)
            print(f"a node is back {time.monotonic() - began:.1f} s after {killed} was killed")
            assert set(back) | {killed} >= set(two)


def environment(pid: int) -> dict[str, str]:
    """Of a process."""
    return dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line)


def looked_after(machine: ClusterMachine) -> bool:
    """Whether a process holds the lock of the machine's node."""
    with (machine.folder / "0.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.cluster
async def test_without_ray_a_machine_speaks_on_and_its_node_is_adopted(tmp_path: Path) -> None:
    async with machines(tmp_path, 1, SLOTS, nodes=2) as (head, other):
        await until_nodes(head, 2)
        before = head.nodes() | other.nodes()
        async with callers(await head.url(), 4) as spoken_to:
            for pid in other.ray("raylet/raylet"):
                os.kill(pid, signal.SIGKILL)
            for is_held in (False, True):  # its replica has ended with Ray; the next one adopts the node
                await until(lambda: looked_after(other) == is_held, 60)  # noqa: B023
            await until_nodes(head, 2)
            assert head.nodes() | other.nodes() == before
            await hang_up(spoken_to)


@pytest.mark.cluster
async def test_without_its_head_a_cluster_speaks_on_and_is_adopted_by_the_next(tmp_path: Path) -> None:
    async with machines(tmp_path, 1, SLOTS, nodes=2) as (head, other):
        await until_nodes(head, 2)
        before = head.nodes() | other.nodes()
        async with callers(await other.url(), 2) as spoken_to:
            for pid in head.ray("gcs_server"):
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(5)
            async with callers(await other.url(), 2) as later, callers(await head.url(), 2) as at_the_head:
                await hang_up((*spoken_to, *later, *at_the_head))
            await until_nodes(head, 2)
            assert head.nodes() | other.nodes() == before


@pytest.mark.cluster
async def test_a_new_head_finds_nodes_that_no_caller_needs(tmp_path: Path) -> None:
    async with machines(tmp_path, 1, SLOTS) as (head, other):
        async with callers(await head.url(), 4) as spoken_to:
            await until_nodes(head, 2)
            await hang_up(spoken_to)
        before = head.nodes() | other.nodes()
        for pid in head.ray("gcs_server"):
            os.kill(pid, signal.SIGKILL)
        await until_listed(head, operator.not_)
        await until_nodes(head, 2)
        assert head.nodes() | other.nodes() == before


@pytest.mark.cluster
async def test_a_machine_whose_process_is_killed_is_started_again(tmp_path: Path) -> None:
    async with machines(tmp_path, 1, SLOTS, gpus=2, nodes=2) as (head, without_gpu):
        url, before, doors = await head.url(), head.nodes(), head.ray("haproxy")
        (pid,) = before.values()
        # Ray takes the user's word for GPUs: the node is placed by them, and told which they are.
        assert environment(pid)["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert not [name for name in environment(pid) if name.startswith("RAY_")], "the node has Ray's token"
        async with callers(url, 2) as spoken_to:
            head.process.kill()
            head.process.wait()
            await until(lambda: not is_taken("127.0.0.1", int(head.arguments[1].partition("=")[2])), 10)
            head.restart(port=int(url.rpartition(":")[2]))
            await until_listed(head, bool)
            assert head.nodes() == before
            assert not without_gpu.nodes()
            assert all(map(is_running, doors))
            await hang_up(spoken_to)


@pytest.mark.cluster
async def test_a_machine_that_is_drained_finishes_its_calls(tmp_path: Path) -> None:
    async with machines(tmp_path, 2, SLOTS, nodes=2) as (head, *others):
        two = await until_nodes(head, 2)
        (machine,) = (other for other in others if other.nodes())
        (name,) = machine.nodes()
        await until_led_to(await head.url(), name)
        async with callers(await head.url(), 4) as spoken_to:
            there = [caller for caller in spoken_to if caller.node == name]
            assert there
            drain = ("cluster", "drain", name, "--folder", str(head.folder))
            assert (await asyncio.to_thread(run, *drain)).returncode == 0  # callers are read meanwhile

            def moved(known: Listed) -> bool:
                """A new one may be there before this one drains."""
                states = {each["state"] for key, each in known.items() if key == name or key not in two}
                return {"draining", "ok"} <= states

            await until_listed(head, moved)
            async with callers(await head.url(), 2) as later:
                assert name not in {caller.node for caller in later}
                await hang_up((*spoken_to, *later))
        await until_nodes(head, 2, name)


@pytest.mark.cluster
async def test_a_new_version_comes_beside_the_old_one(tmp_path: Path) -> None:
    """What the documentation says under "A new version": each machine drains, stops and joins, the head last."""
    package = Path(agent_tts.__file__).parent
    new = tmp_path / "new" / "agent_tts"
    shutil.copytree(package, new, ignore=shutil.ignore_patterns("__pycache__"))
    (new.parent / "web").symlink_to(package.parent / "web")
    text = (new / "__init__.py").read_text()
    (new / "__init__.py").write_text(text.replace(f'"{agent_tts.__version__}"', '"7.8.9"'))

    async def upgrade(machine: ClusterMachine) -> None:
        port = int((await machine.url()).rpartition(":")[2])
        stopped = await asyncio.to_thread(run, "cluster", "stop", "--folder", str(machine.folder))
        assert stopped.returncode == 0, stopped.stderr
        assert (machine.process.wait(), machine.nodes()) == (0, {})
        machine.restart(port, new.parent)

    async with machines(tmp_path, 1, SLOTS) as (head, other):
        await upgrade(other)
        (old,) = head.nodes()
        async with callers(await head.url(), 2) as of_the_old:
            drain = await asyncio.to_thread(run, "cluster", "drain", old, "--folder", str(head.folder))
            assert drain.returncode == 0, drain.stderr
            wanted = {agent_tts.__version__: "draining", "7.8.9": "ok"}
            await until_listed(
                head, lambda known: {each["version"]: each["state"] for each in known.values()} == wanted
            )
            shown = (await asyncio.to_thread(run, "cluster", "status", "--folder", str(head.folder))).stdout.decode()
            assert agent_tts.__version__ in shown
            assert "7.8.9" in shown
            (began,) = other.nodes().items()
            await until_led_to(await head.url(), began[0])
            async with callers(await other.url(), 2) as of_the_new:
                assert {caller.node for caller in of_the_old} == {old}
                assert {caller.node for caller in of_the_new} == {began[0]}
                await hang_up(of_the_old)
                await until_listed(head, lambda known: old not in known)
                await upgrade(head)
                known = await until_listed(head, lambda known: began[0] in known)
                assert {each["version"] for each in known.values()} == {"7.8.9"}
                assert began in other.nodes().items()
                await hang_up(of_the_new)


@pytest.mark.cluster
async def test_keys_are_counted_over_all_nodes(tmp_path: Path) -> None:
    keys = "auth.keys={shop: {key: sesame, sessions: 3}}"
    async with machines(tmp_path, 1, SLOTS, keys, nodes=2) as (head, _):
        await until_listed(head, lambda known: len(known) == 2)
        async with callers(await head.url(), 3, api_key="sesame") as spoken_to:
            assert len({caller.node for caller in spoken_to}) == 2
            with pytest.raises(AtCapacity, match="in the fleet"):
                await Caller(await head.url(), api_key="sesame").task
            await hang_up(spoken_to)
