"""Measure what WebRTC callers cost the node's front, silent and speaking. `python -m tests.measure.rtc --help`.

Callers are aiortc peers in processes of their own, which decode nothing. They look for packets each millisecond and do
not wait for them: a send that wakes a process of the same machine costs the sender up to 70 us, one over a network 4.
Trees of the source are measured in turns, so that a busy machine is busy for each of them.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx
import typer

import agent_tts
from agent_tts.bench import report
from agent_tts.bench.connection import send_text
from agent_tts.bench.node import OwnNode, by_kind, cpu_percent, own_node
from agent_tts.bench.rtc_peer import Arrivals, ListeningPeer
from agent_tts.bench.scenario import CallListener, CallSample
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import ready, work, workers
from agent_tts.bench.workers import report as tell
from agent_tts.cli.bench_runs import run
from agent_tts.cli.options import command
from tests.measure.cpu import cpu_used

READY_S = 120.0
TEXT = "one two three four five six seven eight nine ten, " * 40
POLL_S = 0.001
SETTLE_S = 3.0  # before each window
HERE = str(Path(agent_tts.__file__).parents[1])


class Polling(selectors.DefaultSelector):
    """Looks for what is ready, and is never woken."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            time.sleep(POLL_S if timeout is None else min(timeout, POLL_S))
        return super().select(0)


async def main_of_client(job: dict[str, Any]) -> dict[str, Any]:
    """A process with some callers: it is told of each window, and answers with the lateness of its packets."""
    peers = [ListeningPeer() for _ in range(job["callers"])]
    speakers: list[asyncio.Task[None]] = []
    apart = httpx.Limits(max_keepalive_connections=0)  # otherwise one front would have all of them
    async with httpx.AsyncClient(base_url=job["url"], timeout=READY_S, limits=apart) as client:
        for peer in peers:
            await peer.connect(client)
    word = await ready()
    while "end" in word:
        if word["speak"] and not speakers:
            speakers = [asyncio.create_task(_speak(peer)) for peer in peers]
        for peer in peers:
            peer.arrivals = Arrivals()
        await asyncio.sleep(word["end"] - time.monotonic())
        found = [peer.arrivals.between(word["begin"], word["end"]) for peer in peers]
        late_ms = [late for one, _ in found for late in one]
        word = await tell({"late_ms": late_ms, "lost": sum(lost for _, lost in found)})
    for speaker in speakers:
        speaker.cancel()
    await asyncio.gather(*speakers, return_exceptions=True)
    await asyncio.gather(*(peer.close() for peer in peers))
    return {}


async def _speak(peer: ListeningPeer) -> None:
    number = 0
    while True:
        listener = CallListener(CallSample("rtc", "heard_out", 0, time.monotonic()), 0, (0.0, 0.0))
        peer.listen(listener)
        peer.send("context.open", context_id=f"c{number}", timestamps="none")
        send_text(peer.send, f"c{number}", TEXT)
        await listener.over.wait()
        number += 1


@contextmanager
def python_path(tree: str) -> Iterator[None]:
    """Processes that start here import this tree."""
    kept = dict(os.environ)
    others = os.environ.get("PYTHONPATH", "")
    os.environ |= {"PYTHONPATH": f"{tree}{os.pathsep}{others}", "PYTHONSAFEPATH": "1"}  # not that of the current folder
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= kept


async def measure(
    tree: str, callers: int, clients: int, seconds: float, profile: Path | None, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Both windows of one node: percent of a core that the front and the engine take for a caller, and lateness."""
    with python_path(tree):
        async with own_node(**settings) as node:
            return await _windows(node, callers, clients, seconds, profile)


async def _windows(
    node: OwnNode, callers: int, clients: int, seconds: float, profile: Path | None
) -> list[dict[str, Any]]:
    jobs = [{"url": node.url, "callers": len(range(part, callers, clients))} for part in range(clients)]
    fronts = {name: pid for name, pid in node.pids.items() if name.startswith("front")}
    before_s = sum(cpu_used(fronts).values())
    with python_path(HERE):
        async with workers("tests.measure.rtc", jobs, ready_s=READY_S) as found:
            connecting_s = sum(cpu_used(fronts).values()) - before_s
            rows = []
            for speak in (False, True):
                begin = time.monotonic() + SETTLE_S
                end = begin + seconds
                window = {"speak": speak, "begin": begin, "end": end}
                if profile is not None:
                    await _record(min(fronts.values()), profile, "speaks" if speak else "silent", seconds)
                used, *answers = await asyncio.gather(
                    cpu_percent(node.pids, begin, end),
                    *(worker.tell(window, end - time.monotonic() + 30) for worker in found),
                )
                late_ms = [late for answer in answers for late in answer["late_ms"]]
                rows.append(
                    {
                        "speak": speak,
                        "front": by_kind(used)["front"] / callers,
                        "engine": used["engine"] / callers,
                        "connect_ms": 1_000 * connecting_s / callers,
                        "packets": len(late_ms),
                        "lost": sum(answer["lost"] for answer in answers),
                        **percentiles(late_ms, 50, 99, 100),
                    }
                )
            return rows


async def _record(pid: int, folder: Path, name: str, seconds: float) -> None:
    """Start py-spy, which writes stacks and the number of samples of each."""
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything waits
    path = folder / f"{name}.txt"
    await asyncio.create_subprocess_exec(
        *("py-spy", "record", "--nonblocking", "-r", "200", "-f", "raw", "-d", f"{seconds:g}", "-o", str(path)),
        *("-p", str(pid)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


@command
def main(
    tree: Annotated[list[str], typer.Option(help="Folders of the source to measure in turns.")] = [HERE],  # noqa: B006
    callers: Annotated[int, typer.Option(min=1)] = 24,
    clients: Annotated[int, typer.Option(min=1, help="Processes of callers.")] = 2,
    rounds: Annotated[int, typer.Option(min=1)] = 2,
    seconds: Annotated[float, typer.Option(min=1, help="Of each window: all are silent, then all are spoken to.")] = 10,
    engine: Annotated[str, typer.Option(help="tone or espeak.")] = "espeak",
    fronts: Annotated[int, typer.Option(min=1, help="Front processes.")] = 1,
    profile: Annotated[Path | None, typer.Option(help="Folder for stacks of the front by py-spy.")] = None,
) -> None:
    """CPU of a node's fronts for each WebRTC caller, percent of a core; median of the rounds."""
    settings = {"engine": engine, "slots": callers, "limits__rtc_peers": callers, "limits__connections": 2 * callers}
    settings |= {"fronts": fronts} if fronts > 1 else {}
    rows: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for one in tree:
            for row in run(measure(one, callers, clients, seconds, profile, settings)):
                rows.setdefault((row["speak"], one), []).append(row)
    columns = ("front", "engine", "connect_ms", "p50", "p99", "p100", "packets", "lost")
    shown = [
        [name, "speaks" if speak else "silent", *(round(median(row[column] for row in found), 3) for column in columns)]
        for (speak, name), found in sorted(rows.items())
    ]
    title = (
        f"{callers} callers, {engine}, {fronts} fronts, {rounds} x {seconds:g} s; % of a core a caller, lateness in ms"
    )
    report.table(title, ["tree", "caller", *columns], shown)


if __name__ == "__main__":
    import sys

    if len(sys.argv) > 1:
        typer.run(main)
    else:
        work(main_of_client, lambda: asyncio.SelectorEventLoop(Polling()))
