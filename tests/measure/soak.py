"""Callers who finish, cancel, flush, vanish, hold several contexts or leave an HTTP request, for minutes, on a node of
its own: `python -m tests.measure.soak [--model CHECKPOINT]`. Exits with 1 where something is left, is lost or grows.

Memory counts from `WARM_S` on: until then allocators and caches fill.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from agent_tts.bench.load import settled
from agent_tts.bench.node import NodeWatch, own_node, watched
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import answers, workers
from agent_tts.client.connection import stream_url

READY_S, LATE_S = 60.0, 90.0
LOOK_S = 1.0
WARM_S = 30.0
GROWTH_MIB = 48.0  # of an engine's process, and of all fronts together, in any time behind the warm-up
PRINTED = 20


def growth(watch: NodeWatch, begin: float) -> list[tuple[str, float, float]]:
    """Of the engine and of the fronts: memory at the end of the warm-up and at the end, MiB (means of five looks)."""
    looks = [look for look in watch.looks if look.at >= begin + WARM_S and look.engines]
    engine, fronts = [look.engines[0].rss_mib for look in looks], [look.front.rss_mib for look in looks]
    mean = {name: (sum(of[:5]) / 5, sum(of[-5:]) / 5) for name, of in (("engine", engine), ("fronts", fronts))}
    return [(name, round(first, 1), round(last, 1)) for name, (first, last) in mean.items()]


async def soak(seconds: float, callers: int, processes: int, settings: dict[str, object]) -> list[str]:
    """Print figures; what does not hold."""
    async with own_node(**settings) as node, watched(node.url, node.pid, LOOK_S) as watch:
        urls = {"ws": stream_url(node.url), "http": node.url}
        jobs = [
            {"urls": urls, "seconds": seconds, "numbers": [*range(part, callers, processes)]}
            for part in range(processes)
        ]
        begin = watch.looks[0].at
        async with workers("tests.measure.soak_callers", jobs, ready_s=READY_S) as found:
            told = await answers(found, {}, seconds + LATE_S)
        memory = growth(watch, begin)
        after = await settled(watch)
    first_audio = [ms for one in told for ms in one["first_audio_ms"]]
    errors = [error for one in told for error in one["errors"]]
    gaps = sum(one["with_gaps"] for one in told)
    ways = {way: sum(one["ways"][way] for one in told) for way in told[0]["ways"]}
    print(f"{sum(ways.values())} utterances of {callers} callers in {seconds:g} s: {ways}")
    print(f"first audio, ms: {percentiles(first_audio, 50, 95, 99, 100)}; {gaps} with a gap; {len(errors)} errors")
    print(f"loops of the callers late, ms: {max(one['lag_ms']['p99'] or 0 for one in told)} at p99")
    for look in watch.looks[:: max(1, len(watch.looks) // PRINTED)]:
        engines = ", ".join(f"{engine.rss_mib:.0f}" for engine in look.engines)
        print(f"{look.at - begin:6.1f} s: engine {engines} MiB, fronts {look.front.rss_mib:.0f} MiB")
    left = {name: after.total(f"agent_tts_{name}") for name in ("contexts_active", "sessions", "slots_used")}
    broken = [f"left on the node: {name} {count:g}" for name, count in left.items() if count]
    broken += [f"{name} grew from {a} to {b} MiB" for name, a, b in memory if b - a > GROWTH_MIB]
    if gaps:
        broken.append(f"{gaps} callers had a gap")
    return broken + sorted(set(errors))[:5]


def main(
    model: Annotated[Path | None, typer.Option(help="A checkpoint; otherwise the tone engine speaks.")] = None,
    seconds: Annotated[float, typer.Option(min=WARM_S + 10)] = 200.0,
    callers: Annotated[int, typer.Option(min=1)] = 270,
    processes: Annotated[int, typer.Option(min=1, help="Of callers.")] = 6,
    frames: Annotated[
        int, typer.Option(help="The most of an utterance: random weights do not end by themselves.")
    ] = 60,
) -> None:
    engine: dict[str, object] = {"engine": "tone"} if model is None else {"qwen3__models": model, "slots": 880}
    limits = {"limits__max_frames": frames, "limits__requests_per_s": 10_000, "limits__connections": 4 * callers}
    if broken := asyncio.run(soak(seconds, callers, processes, engine | limits)):
        typer.echo("\n".join(broken), err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
