"""Attacks on a node in a process of its own, beside a polite caller in another.

An attack is one coroutine in a module of this folder:

    @attack("empty UDP datagrams", settings={"slots": 64})
    async def empty_datagrams(target: Target) -> str:
        ...                                       # what an outsider would do, for `target.seconds(long=20, short=2)`
        return "28232 ports swept"                # what was done, for the table

It raises `Broken` (or fails an assertion) if the node breaks a promise to the attacker or to a third client that the
attack plays itself. The harness judges the rest: the polite caller lost nothing and waited for nothing, the node is
ready, and its memory and descriptors are back. Attacks with equal settings share a node, in the order of the modules.
Attackers have machines of their own, so this process has a lower priority than the node and the polite caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import pkgutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import yaml

import tests.attack as package
from agent_tts.bench.node import MeasuredNode, NodeStats, NodeWatch, ProcessStats, children_of, lag_ms, own_node
from agent_tts.bench.workers import Worker, workers
from agent_tts.errors import SpeechError

POLITE_KEY = "polite-caller"
KEY = "attacker"
OTHER_KEY = "bystander"
KEYS = [POLITE_KEY, KEY, OTHER_KEY]

# What the polite caller may notice, in ms: in `make attack`, and in tests, which share their cores with others and find
# a stall of seconds alone.
MAX_P99_MS, MAX_GAP_MS = 25.0, 0.0
MAX_P99_SHORT_MS, MAX_GAP_SHORT_MS = 5_000.0, 5_000.0
MAX_GROWTH_MIB = 50.0  # memory that the node may hold after an attack
WARM_MIB = 128.0  # what the first call of the agent loads
MAX_FDS = 8  # descriptors more than before: the polite caller's next connection, a worker being replaced
ATTACK_S, ATTACK_SHORT_S = 300.0, 90.0  # longest attack
BACK_S = 30.0  # for the node to be as before
POLITE_START_S = 60.0
ANSWER_S = 20.0


class Broken(AssertionError):
    """The node broke a promise."""


@dataclass(frozen=True, slots=True)
class Target:
    """The node under attack, as the attacker knows it."""

    url: str  # http://127.0.0.1:port
    front_pid: int
    short: bool

    key = KEY
    other_key = OTHER_KEY

    @property
    def ws_url(self) -> str:
        """URL of the protocol's WebSocket."""
        return self.url.replace("http", "ws", 1) + "/v1/tts/stream"

    @property
    def port(self) -> int:
        """The node's port."""
        return int(self.url.rpartition(":")[2])

    @property
    def headers(self) -> dict[str, str]:
        """With the attacker's key."""
        return {"Authorization": f"Bearer {KEY}"}

    @property
    def engine_pids(self) -> list[int]:
        """The node's child processes now."""
        return children_of(self.front_pid)

    def scaled(self, long: float, short: float) -> float:
        """A size or a duration: `long` in `make attack`, `short` in a test."""
        return short if self.short else long

    def rss_mib(self) -> float:
        """Memory of the node's processes now."""
        return sum(stats.rss_mib for stats in _processes(self.front_pid))


Node = Callable[[Mapping[str, object]], AbstractAsyncContextManager[MeasuredNode]]


def plain_node(settings: Mapping[str, object]) -> AbstractAsyncContextManager[MeasuredNode]:
    """A node by `agent-tts serve`, whose log is read."""
    return own_node("serve", **settings)


def agent_node(settings: Mapping[str, object]) -> AbstractAsyncContextManager[MeasuredNode]:
    """A node by `agent-tts agent`."""
    return own_node("agent", **settings)


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. Made by `attack`."""

    name: str
    run: Callable[[Target], Awaitable[str]]
    settings: Mapping[str, object]
    node: Node
    max_growth_mib: float
    expected: frozenset[str]
    warms: bool


ATTACKS: list[Attack] = []


def attack(
    name: str,
    *,
    settings: Mapping[str, object] | None = None,
    node: Node = plain_node,
    max_growth_mib: float = MAX_GROWTH_MIB,
    expected: Iterable[str] = (),
    warms: bool = False,
) -> Callable[[Callable[[Target], Awaitable[str]]], Callable[[Target], Awaitable[str]]]:
    """Register an attack.

    Args:
        name: in the table.
        settings: of its node, "__" for the dots of keys, besides the engine tone and three API keys.
        node: starts the node. One of your own may do what the attack needs: leave stderr unread, limit descriptors.
        max_growth_mib: memory that the node may hold after it, more than before.
        expected: codes of errors that the polite caller may meet, as its engine is killed.
        warms: whether its first round loads code and fills what is kept. The long form has a short one before it; after
            the short form the node may hold `WARM_MIB` more.
    """

    def register(run: Callable[[Target], Awaitable[str]]) -> Callable[[Target], Awaitable[str]]:
        ATTACKS.append(Attack(name, run, settings or {}, node, max_growth_mib, frozenset(expected), warms))
        return run

    return register


@dataclass(slots=True)
class Verdict:
    """What came of an attack."""

    name: str
    polite: dict[str, Any] = field(default_factory=dict)  # figures of the polite caller; see `polite.Figures.told`
    loop_ms: float | None = None  # the longest that an event loop of the node was late, as a bound of its histogram
    rss_mib: tuple[float, float] = (0.0, 0.0)  # before and after
    did: str = ""
    broken: list[str] = field(default_factory=list)  # what does not hold
    log: str = ""  # of the node


def load(only: str = "") -> list[list[Attack]]:
    """All attacks whose module or name contains `only`, in groups that share a node."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if module.name.rpartition(".")[2] not in ("harness", "polite", "__main__", "test_attacks"):
            importlib.import_module(module.name)
    groups: dict[tuple[Node, str], list[Attack]] = {}
    for one in ATTACKS:
        if only in one.name or only in one.run.__module__:
            groups.setdefault((one.node, repr(sorted(one.settings.items()))), []).append(one)
    return list(groups.values())


async def run_group(
    attacks: list[Attack],
    *,
    short: bool,
    settings: Mapping[str, object] | None = None,
    begin: Callable[[Attack], None] = lambda _: None,
) -> AsyncIterator[Verdict]:
    """Run attacks on one node, with more settings if any. If it dies, the others are not run but get a verdict."""
    left = list(attacks)
    log = io.StringIO()
    try:
        async with _target(attacks[0], short, settings or {}, log) as (target, caller):
            while left:
                begin(left[0])
                verdict = Verdict(left[0].name)
                await _judge(left[0], target, caller, verdict)
                verdict.log = log.getvalue()
                log.truncate(log.seek(0))
                if "Traceback" in verdict.log:
                    verdict.broken.append("a traceback is in the log")
                left.pop(0)
                yield verdict
                if left and not _processes(target.front_pid):
                    raise Broken("not run: the node has ended")
    except Exception as error:  # noqa: BLE001 - whatever it was, the table tells it
        for one in left:
            yield Verdict(one.name, broken=[f"{type(error).__name__}: {error}"], log=log.getvalue())


@asynccontextmanager
async def _target(
    one: Attack, short: bool, more: Mapping[str, object], log: io.StringIO
) -> AsyncIterator[tuple[Target, Worker]]:
    settings = {
        "engine": "tone",
        "auth__api_keys": yaml.safe_dump(KEYS, default_flow_style=True).strip(),
        "limits__sessions_per_key": 4,  # an operator's who gives keys to strangers
        "limits__token_sessions_per_key": 32,
    }
    with contextlib.redirect_stderr(log):
        async with one.node({**settings, **one.settings, **more}) as node:
            target = Target(node.url, node.pid, short)
            job = {"url": target.ws_url}
            async with workers("tests.attack.polite", [job], key=POLITE_KEY, ready_s=POLITE_START_S) as (caller,):
                with _lower_priority():
                    await asyncio.sleep(target.scaled(3, 0.5))  # the node warms up
                    await caller.tell({}, ANSWER_S)
                    yield target, caller


@contextlib.contextmanager
def _lower_priority() -> Any:
    """Leave the cores to the node and the polite caller, where the priority can be restored afterwards."""
    if sys.platform == "win32" or os.geteuid() != 0:
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, 10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


async def _judge(one: Attack, target: Target, caller: Worker, verdict: Verdict) -> None:
    if one.warms and not target.short:
        await one.run(replace(target, short=True))
        await caller.tell({}, ANSWER_S)
    most_mib = one.max_growth_mib + (WARM_MIB if one.warms and target.short else 0)
    rss, fds = target.rss_mib(), _fds(target.front_pid)
    tasks, loops = asyncio.all_tasks(), await _loops(target)
    try:
        async with asyncio.timeout(target.scaled(ATTACK_S, ATTACK_SHORT_S)):
            verdict.did = await one.run(target)
    except Exception as error:  # noqa: BLE001 - the table tells it
        verdict.broken.append(f"{type(error).__name__}: {error}")
    left = asyncio.all_tasks() - tasks  # aioice's, of the attacker's own peers
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    verdict.polite = figures = await caller.tell({}, ANSWER_S)
    p99_ms, gap_ms = (MAX_P99_SHORT_MS, MAX_GAP_SHORT_MS) if target.short else (MAX_P99_MS, MAX_GAP_MS)
    if errors := {code: count for code, count in figures["errors"].items() if code not in one.expected}:
        verdict.broken.append(f"the polite caller met {errors}")
    if figures["p99_ms"] is None or figures["p99_ms"] > p99_ms:
        verdict.broken.append(f"p99 of the polite caller is {figures['p99_ms']} ms, not {p99_ms:g}")
    if figures["gap_ms"] > gap_ms:
        verdict.broken.append(f"the polite caller heard a gap of {figures['gap_ms']:.0f} ms")
    back_at = time.monotonic() + BACK_S
    while (trouble := await _trouble(target, rss + most_mib, fds + MAX_FDS)) and time.monotonic() < back_at:
        await asyncio.sleep(0.25)
    verdict.broken += trouble
    if loops is not None and (now := await _loops(target)) is not None:
        verdict.loop_ms = lag_ms(loops, now, 1.0)
    verdict.rss_mib = (rss, target.rss_mib())
    await caller.tell({}, ANSWER_S)  # drop what came while it recovered


async def _loops(target: Target) -> NodeStats | None:
    """The node's figures, with how late its event loops were; None if it does not answer."""
    headers = {"Authorization": f"Bearer {POLITE_KEY}"}
    async with httpx.AsyncClient(base_url=target.url, headers=headers, timeout=ANSWER_S) as client:
        with contextlib.suppress(SpeechError):
            return await NodeWatch(client, target.front_pid).look()
    return None


async def _trouble(target: Target, rss_mib: float, fds: int) -> list[str]:
    """What is not as before."""
    found = []
    try:
        async with httpx.AsyncClient(timeout=ANSWER_S) as client:
            status = (await client.get(f"{target.url}/ready")).status_code
        if status != 200:
            found.append(f"/ready answers {status}")
    except httpx.HTTPError as error:
        found.append(f"/ready: {type(error).__name__}")
    if (now := target.rss_mib()) > rss_mib:
        found.append(f"the node holds {now:.0f} MiB, not {rss_mib:.0f}")
    if (now := _fds(target.front_pid)) > fds:
        found.append(f"the node holds {now} descriptors, not {fds}")
    return found


def _fds(front_pid: int) -> int:
    return sum(stats.fds for stats in _processes(front_pid))


def _processes(pid: int) -> list[ProcessStats]:
    """Of a process and all below it."""
    found = []
    with contextlib.suppress(OSError):  # it has just ended
        found.append(ProcessStats.of(pid))
    return found + [stats for child in children_of(pid) for stats in _processes(child)]
