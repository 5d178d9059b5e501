"""Runs a scenario: client processes, the CPU time of all processes meanwhile, and what came of every call."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_tts.bench.node import by_kind, cpu_percent, pin
from agent_tts.bench.scenario import CallSample, Scenario
from agent_tts.bench.statistics import worst
from agent_tts.bench.workers import Worker, answers, workers

MODULE = "agent_tts.bench.client"
READY_S = 90.0  # for a process to start and to connect
HEAD_START_S = 0.2  # between the word to go and the first call
MARGIN_S = 30.0  # for a process to answer, beyond its calls
PEERS_A_CLIENT = 24  # WebRTC
MESSAGES_A_CLIENT = 3_000  # a second: about a tenth of what keeps a core busy

# Messages of a load, at most nearly.
MESSAGES_A_CALL = 75  # six seconds of speech
MESSAGES_PER_S_PACED, MESSAGES_PER_S_UNPACED = 20, 100  # of each of many callers at once


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """The node that is measured."""

    ws_url: str
    http_url: str
    key: str | None = None
    pid: int = 0  # of `agent-tts serve`; 0 of a running node
    pids: Mapping[str, int] = field(default_factory=dict)  # all its processes by name; empty for a running node
    session: dict[str, Any] = field(default_factory=dict)  # that it has accepted: voice, lead_ms and the like


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """What came of a scenario."""

    samples: list[CallSample]  # by the time that they were to begin
    window: tuple[float, float]  # when it was measured, on the monotonic clock
    # Figures: `clients`, `client_lag_ms`, `cpu_percent` by kind of process, `cpu_percent_each` by process.
    processes: dict[str, Any]


@asynccontextmanager
async def prepared(
    node: MeasuredNode, scenario: Scenario, *, clients: int | None = None, cores: Sequence[int] = ()
) -> AsyncIterator[Callable[[float], Coroutine[Any, Any, ScenarioResult]]]:
    """Client processes that are ready for a scenario; ended with the block. Cancelling it ends all calls.

    What it yields runs the scenario once, from a time of the monotonic clock on.

    Args:
        clients: processes for WebSockets and HTTP, and for many WebRTC peers; None: as many as the load needs.
        cores: one for each process, in turn; empty: any.
    Raises:
        SpeechError: one of them cannot do its job, or the node refuses the WebRTC peers.
        SettingsError: the machine has no such core.
    """
    job = {"urls": {"ws": node.ws_url, "http": node.http_url}, "scenario": asdict(scenario)}
    async with AsyncExitStack() as stack:
        found: list[Worker] = []
        for transports, parts in _groups(scenario, clients, len(cores)):
            jobs = [{**job, "transports": transports, "part": part, "parts": parts} for part in range(parts)]
            found += await stack.enter_async_context(workers(MODULE, jobs, key=node.key, ready_s=READY_S))
        pids = {f"clients {number}": worker.pid for number, worker in enumerate(found)}
        if cores:
            pin(pids, "clients", cores)

        async def run(start: float) -> ScenarioResult:
            last_s = scenario.last_s + (scenario.tail_s or 0) if scenario.rate is not None else 0
            end_s = max(scenario.end_s, last_s) + (scenario.timeout_s or 0)
            window = (start + scenario.warmup_s, start + (scenario.end_s or end_s))
            within_s = start - time.monotonic() + end_s + MARGIN_S
            asked, cpu = await asyncio.gather(
                answers(found, {"start": start}, within_s),
                cpu_percent({**node.pids, **pids}, *window) if scenario.duration_s else asyncio.sleep(0, {}),
            )
            samples = [CallSample(**sample) for answer in asked for sample in answer["samples"]]
            samples.sort(key=lambda sample: sample.begin)
            processes = {
                "clients": len(found),
                "client_lag_ms": worst([answer["lag_ms"] for answer in asked]),
                "cpu_percent": by_kind(cpu),
                "cpu_percent_each": cpu,
            }
            return ScenarioResult(samples, window, processes)

        yield run


async def measure(
    node: MeasuredNode, scenario: Scenario, *, clients: int | None = None, cores: Sequence[int] = ()
) -> ScenarioResult:
    """Run a scenario now; see `prepared`."""
    async with prepared(node, scenario, clients=clients, cores=cores) as run:
        return await run(start_time())


def start_time() -> float:
    """When all processes begin, on the monotonic clock, which the processes of a machine share."""
    return time.monotonic() + HEAD_START_S


def _groups(scenario: Scenario, clients: int | None, cores: int) -> list[tuple[list[str], int]]:
    """Groups of processes: the transports of their calls, and how many.

    WebRTC is apart, because its handshakes would make other calls late: one costs more than a minute of speech.
    """
    if scenario.transport in ("health", "idle"):
        return [([scenario.transport], 1)]
    wanted = clients or clients_for(scenario, cores)
    parts = min(wanted, scenario.concurrency or wanted)
    if scenario.transport == "rtc":
        return [(["rtc"], parts)]
    streamed = [(["websocket", "http"], parts)]
    return [*streamed, (["rtc"], 1)] if scenario.rtc else streamed


def clients_for(scenario: Scenario, cores: int = 0) -> int:
    """Processes that take the messages of a scenario without being late, at most one for each core.

    Without `cores` of their own, half of the machine's are the node's.
    """
    room = cores or max(1, (os.cpu_count() or 1) // 2)
    if scenario.peers:
        return min(math.ceil(scenario.peers / PEERS_A_CLIENT), room)
    if scenario.rate is not None:
        messages_per_s, calls = scenario.rate * MESSAGES_A_CALL, max(1, round(scenario.rate))
    else:
        calls = scenario.concurrency or 1
        paced = scenario.session.get("lead_ms") is not None
        messages_per_s = calls * (MESSAGES_PER_S_PACED if paced else MESSAGES_PER_S_UNPACED)
    return max(1, min(math.ceil(messages_per_s / MESSAGES_A_CLIENT), calls, room))
