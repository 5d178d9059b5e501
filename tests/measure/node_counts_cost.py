"""CPU of what a front asks its supervisor: a session's admission, and the node's page of metrics.

`python -m tests.measure.node_counts_cost`: a supervisor's part in another process, those of eight fronts in this one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

import uvloop

from agent_tts.config.settings import Settings
from agent_tts.ipc.channel import Channel
from agent_tts.ipc.front_messages import Claim, FrontPage, ToFront, ToSupervisor
from agent_tts.messages import Finished
from agent_tts.serve.access.node_counts import NodeCounts
from agent_tts.serve.access.supervisor_client import SupervisorClient
from agent_tts.serve.telemetry import pages
from agent_tts.serve.telemetry.metrics import Metrics

FRONTS = 8
SESSIONS, PAGES = 5_000, 100
SETTINGS = Settings(limits={"sessions_per_key": SESSIONS, "connections": SESSIONS})


async def supervise(ends: list[socket.socket]) -> None:
    """Answer until a front is gone."""
    counts, gone = NodeCounts(SETTINGS), asyncio.Event()
    for number, end in enumerate(ends):
        counts.attach(number, Channel(end, ToSupervisor, lambda _: gone.set()))
    await gone.wait()


def front(number: int, end: socket.socket) -> SupervisorClient:
    """A front's side, with the metrics of three transports."""
    metrics = Metrics(front=number)
    for transport in ("websocket", "rtc", "http"):
        meter = metrics.context(transport)
        meter.text(1)
        meter.audio(80)
        meter.finished(Finished("c", "end", busy_ms=1))
    supervisor = SupervisorClient(number, Channel(end, ToFront, lambda _: None), bytes(32))
    supervisor.channel.handle(FrontPage, lambda _: pages.write(metrics.registry))
    return supervisor


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(ends: list[socket.socket], supervisor: int) -> None:
    """Print the figures."""
    fronts = [front(number, end) for number, end in enumerate(ends)]

    async def admit(number: int) -> None:
        await fronts[0].admit(Claim(number, "key"))
        fronts[0].release(number)

    for name, count, ask in (
        ("a session, admitted and released", SESSIONS, admit),
        (f"a page of {FRONTS} fronts", PAGES, lambda number: fronts[number % FRONTS].page()),
    ):
        ours, theirs, waited = time.process_time(), cpu_s(supervisor), []
        for number in range(count):
            began = time.perf_counter()
            await ask(number)
            waited.append(1e6 * (time.perf_counter() - began))
        ours, theirs = (1e6 * used / count for used in (time.process_time() - ours, cpu_s(supervisor) - theirs))
        median = sorted(waited)[count // 2]
        print(f"{name}: fronts {ours:.0f} us of CPU, supervisor {theirs:.0f}; answered after {median:.0f} us")


def main() -> None:
    pairs = [socket.socketpair() for _ in range(FRONTS)]
    supervisor = os.fork()
    if not supervisor:
        for ours, _ in pairs:
            ours.close()
        uvloop.run(supervise([theirs for _, theirs in pairs]))
        os._exit(0)
    for _, theirs in pairs:
        theirs.close()
    uvloop.run(measure([ours for ours, _ in pairs], supervisor))
    for ours, _ in pairs:
        ours.close()
    os.waitpid(supervisor, 0)


if __name__ == "__main__":
    main()
