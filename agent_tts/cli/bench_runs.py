"""Runs of `agent-tts bench serve`, `streams` and `rtc`: from options to a node, its load, and a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_tts.bench import report
from agent_tts.bench.rtc import listen
from agent_tts.bench.serve import REQUEST_S, Load, measure
from agent_tts.bench.streams import Plan, hold, is_clean
from agent_tts.cli.bench_options import NodeOptions, Outputs, counts, numbers
from agent_tts.cli.bench_target import Bar, run, target
from agent_tts.config.settings import Limits
from agent_tts.errors import SettingsError

DEFAULT_RATES = "1,10,20"
SPARE_CONNECTIONS = 16
SPOKEN_S = 10.0  # no request takes longer, and each has a connection for itself
OVER_SLOTS = 8  # with a request for each slot and one more for each so many, no slot waits for a client


def loads_of(
    load: Load, rates: str | None, concurrencies: str | None, saturate: int | None
) -> tuple[list[Load], dict[str, object]]:
    """The loads that the options ask for, and the settings that a node of our own needs for them.

    Raises:
        SettingsError: the options make no sense.
    """
    if sum(option is not None for option in (rates, concurrencies, saturate)) > 1:
        raise SettingsError("--rate, --concurrency and --saturate are ways to load a node: choose one")
    if concurrencies is None and saturate is None:
        found = numbers("--rate", rates or DEFAULT_RATES)
        connections = max(Limits().connections, math.ceil(max(found) * SPOKEN_S))
        return [replace(load, rate=rate) for rate in found], {"limits__connections": connections}
    closed = replace(load, ramp_s=load.warmup_s / 2)
    if saturate is not None:
        unpaced = closed.session | {"lead_ms": None}
        most = saturate + math.ceil(saturate / OVER_SLOTS)
        loads = [replace(closed, concurrency=most, words_every_ms=0, session=unpaced)]
        settings: dict[str, object] = {"slots": saturate, "timeouts__queue_s": REQUEST_S}
    else:
        sizes = counts("--concurrency", concurrencies or "")
        loads = [replace(closed, concurrency=size) for size in sizes]
        most = max(sizes)
        settings = {"slots": most}
    return loads, settings | {"limits__connections": max(Limits().connections, most + SPARE_CONNECTIONS)}


def run_serve(
    source: NodeOptions, loads: Sequence[Load], settings: dict[str, object], clients: int | None, outputs: Outputs
) -> None:
    """`agent-tts bench serve`: each of the loads, on one node.

    Args:
        settings: of a node of our own, keys with "__" for the dots.

    Raises:
        SpeechError: the node cannot be measured.
    """

    async def main() -> tuple[dict[str, Any], list[tuple[dict[str, Any], list[float]]]]:
        async with target(source, loads[0].session, **settings) as node:
            with Bar(sum(load.warmup_s + load.duration_s for load in loads)) as bar:
                asked = [replace(load, session=node.session) for load in loads]
                return node.info, [
                    await bar.during(load.name, measure(node.url, node.key, load, clients=clients, pids=node.pids))
                    for load in asked
                ]

    info, found = run(main())
    rows = [
        (
            *(figures["load"], figures["requests"], *figures["ttfa_ms"].values()),
            *(figures["underruns"], figures["audio_s_per_s"], figures["peak_in_flight"]),
            figures["front_us_per_frame"],
            *(figures["clients"], figures["client_lag_ms"]["p99"], report.counted(figures["errors"])),
        )
        for figures, _ in found
    ]
    every_ms = loads[0].words_every_ms
    pace = f"a word every {every_ms:g} ms" if every_ms else "text at once"
    title = f"{info['engine']}, {info['model']}: time to first audio in ms, {pace}"
    columns = (
        *("load", "requests", "p50", "p95", "p99", "underruns", "audio s/s", "peak", "front us/frame"),
        *("clients", "lag p99", "errors"),
    )
    report.table(title, columns, rows)
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        picture.times(f"{info['engine']} engine", [(figures["load"], ttfa) for figures, ttfa in found if ttfa])

    outputs.write("serve", info, [figures for figures, _ in found], draw)


def run_streams(source: NodeOptions, streams: str, plan: Plan, clients: int | None, outputs: Outputs) -> None:
    """`agent-tts bench streams`.

    Raises:
        SettingsError: the options make no sense.
        SpeechError: the node cannot be measured.
    """
    sizes = counts("--streams", streams)
    settings = {
        "slots": max(sizes),
        "limits__connections": max(Limits().connections, max(sizes) + SPARE_CONNECTIONS),
        "limits__contexts_per_session": plan.per_connection,
    }

    async def main() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with target(source, plan.session, **settings) as node:
            asked = replace(plan, session=node.session)
            with Bar(len(sizes) * (plan.seconds + plan.ramp_s)) as bar:
                return node.info, [
                    await bar.during(
                        f"{size} streams", hold(node.url, node.key, size, asked, node.pids, clients=clients)
                    )
                    for size in sizes
                ]

    info, runs = run(main())
    processes = list(runs[0]["cpu_percent"])
    rows = [
        (
            *(run["streams"], run["underruns"], run["gaps_s"]),
            *(run["margin_ms"].get(name) for name in ("p50", "p1", "p0")),
            *(run["cpu_percent"][name] for name in processes),
            *(run["clients"], run["client_lag_ms"]["p99"], report.counted(run["ended"])),
        )
        for run in runs
    ]
    title = (
        f"{info['engine']}, {info['model']}: streams of {plan.seconds:g} s, paced {plan.session['lead_ms']} ms ahead"
    )
    columns = (
        *("streams", "with gaps", "gaps s", "margin ms p50", "p1", "least"),
        *(f"cpu % {name}" for name in processes),
        *("clients", "lag p99", "ended early"),
    )
    report.table(title, columns, rows)
    clean = max((run["streams"] for run in runs if is_clean(run)), default=0)
    print(f"largest number without a gap: {clean}")
    print_memory(info)

    def draw(picture: report.Plot) -> None:
        series = {name: [run["cpu_percent"][name] for run in runs] for name in processes}
        picture.lines(f"{info['engine']} engine, {clean} streams without a gap", sizes, series, ("streams", "CPU, %"))

    outputs.write("streams", info, runs, draw)


def run_rtc(source: NodeOptions, peers: str, seconds: float, voice: str | None, outputs: Outputs) -> None:
    """`agent-tts bench rtc`.

    Raises:
        SettingsError: the options make no sense.
        SpeechError: the node cannot be measured.
    """
    sizes = counts("--peers", peers)

    async def main() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with target(source, {"voice": voice}, slots=max(sizes), limits__rtc_peers=2 * max(sizes)) as node:
            asked = node.session.get("voice")
            with Bar(len(sizes) * seconds) as bar:
                return node.info, [
                    await bar.during(f"{size} peers", listen(node.http_url, node.key, size, seconds, asked, node.pids))
                    for size in sizes
                ]

    info, runs = run(main())
    processes = list(runs[0]["cpu_percent"])
    rows = [
        (
            *(run["peers"], run["packets"], run["lost"], *run["lateness_ms"].values(), run["worst_p99_ms"]),
            *(run["cpu_percent"][name] for name in processes),
            report.counted(run["errors"]),
        )
        for run in runs
    ]
    columns = (
        *("peers", "packets", "lost", "late ms p50", "p99", "most", "p99 of the worst"),
        *(f"cpu % {name}" for name in processes),
        "errors",
    )
    report.table(f"{info['engine']}, {info['model']}: WebRTC packets against their 20 ms grid", columns, rows)

    def draw(picture: report.Plot) -> None:
        series = {name: [run["lateness_ms"][name] for run in runs] for name in ("p50", "p99")}
        picture.lines(f"{info['engine']} engine", sizes, series, ("WebRTC peers", "lateness of packets, ms"))

    outputs.write("rtc", info, runs, draw)


def print_memory(info: dict[str, Any]) -> None:
    """Print what was taken of each GPU that the node could use."""
    for number, gpu in enumerate(info.get("gpus", ())):
        used, total = gpu["memory_used_mib"], gpu["memory_total_mib"]
        print(f"GPU {number}, {gpu['name']}, driver {gpu['driver']}: {used} of {total} MiB in use")
