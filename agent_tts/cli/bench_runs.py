"""Runs of `agent-tts bench`: from options to a node, its load, and a report."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_tts.bench import report, scenario
from agent_tts.bench.load import LoadOutcome
from agent_tts.bench.runner import MeasuredNode, ScenarioResult, measure
from agent_tts.bench.scenario import REQUEST_S, Scenario
from agent_tts.cli.bench_options import NodeOptions, Outputs, OwnNodeOptions, counts, numbers
from agent_tts.cli.bench_target import progress, run, target
from agent_tts.cli.reporting import complain
from agent_tts.config.settings import Limits
from agent_tts.errors import SettingsError

DEFAULT_RATES = "1,10,20"
SPARE_CONNECTIONS = 16
SPOKEN_S = 10.0  # no request takes longer, and each has a connection for itself
OVER_SLOTS = 8  # with a request for each slot and one more for each so many, no slot waits for a client

Measured = tuple[Scenario, ScenarioResult, dict[str, Any]]


def measured(
    node: NodeOptions,
    scenarios: Sequence[Scenario],
    settings: Mapping[str, object],
    figures: Callable[[Scenario, ScenarioResult], dict[str, Any]],
    clients: int | None = None,
) -> tuple[dict[str, Any], list[Measured]]:
    """Run scenarios with the same session on one node, one after the other: what it tells of itself, and figures.

    Args:
        settings: of a node that is started, keys with "__" for the dots.

    Raises:
        SpeechError: the node cannot be measured.
    """

    async def main() -> tuple[dict[str, Any], list[Measured]]:
        async with target(node, scenarios[0].session, **settings) as found:
            runs = []
            for wanted in scenarios:
                asked = replace(wanted, session=found.node.session)
                with progress(f"{asked.name}, {asked.end_s:g} s"):
                    result = await measure(found.node, asked, clients=clients)
                runs.append((asked, result, figures(asked, result)))
            return found.info, runs

    return run(main())


def connections(least: int) -> int:
    """Setting for so many connections and some to spare."""
    return max(Limits().connections, least + SPARE_CONNECTIONS)


def serve_scenarios(
    rates: str | None, concurrencies: str | None, saturate: int | None, warmup_s: float, **fields: Any
) -> tuple[list[Scenario], dict[str, object]]:
    """The loads that the options ask for, and the settings that a node needs for them.

    Raises:
        SettingsError: the options make no sense.
    """
    if sum(option is not None for option in (rates, concurrencies, saturate)) > 1:
        raise SettingsError("--rate, --concurrency and --saturate are ways to load a node: choose one")
    fields["warmup_s"] = warmup_s
    if concurrencies is None and saturate is None:
        found = numbers("--rate", rates or DEFAULT_RATES)
        most = max(Limits().connections, math.ceil(max(found) * SPOKEN_S))
        return [scenario.requests(f"{rate:g}/s", rate=rate, **fields) for rate in found], {"limits__connections": most}
    if saturate is not None:
        sizes = [saturate + math.ceil(saturate / OVER_SLOTS)]
        fields |= {"words_every_ms": 0, "session": fields["session"] | {"lead_ms": None}}
        settings: dict[str, object] = {"slots": saturate, "timeouts__queue_s": REQUEST_S}
    else:
        sizes = counts("--concurrency", concurrencies or "")
        settings = {"slots": max(sizes)}
    loads = [scenario.requests(f"{size} at once", concurrency=size, ramp_s=warmup_s / 2, **fields) for size in sizes]
    return loads, settings | {"limits__connections": connections(max(sizes))}


def cpu_columns(runs: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    return (f"cpu % {name}" for name in runs[0]["cpu_percent"])


def print_memory(info: Mapping[str, Any]) -> None:
    """Print the memory in use of each GPU that the node could use."""
    for number, gpu in enumerate(info.get("gpus", ())):
        used, total = gpu["memory_used_mib"], gpu["memory_total_mib"]
        print(f"GPU {number}, {gpu['name']}, driver {gpu['driver']}: {used} of {total} MiB in use")


TITLES = {
    "sessions": f"{scenario.SESSIONS} WebSocket sessions at once, on average",
    "mixed": "WebSockets, HTTP and WebRTC, texts of 5 to 2000 characters in 8 languages, 10 % barge-in",
    "storm": f"{scenario.IDLE_CONNECTIONS} connections in {scenario.IDLE_RAMP_S:g} s that never send a byte, and "
    f"{scenario.STORM_CALLS} sessions",
    "soak": "short contexts, clients that vanish, an engine that is killed",
}
Loads = Mapping[str, Callable[[MeasuredNode], Awaitable[LoadOutcome]]]


def hold(
    kind: str, options: OwnNodeOptions, loads: Loads, voice: str | None, json: Path | None, seconds: float
) -> None:
    """Put loads on one node: a table each, and perhaps a file.

    Raises:
        SpeechError: the node or a client process has failed.
        typer.Exit: a promise is broken.
    """
    outputs = Outputs(json=json)
    # More slots than calls: no call waits for one, and the load is on the front.
    settings = {"slots": 3 * scenario.SESSIONS, "limits__rtc_peers": 48}

    async def main() -> tuple[dict[str, Any], dict[str, LoadOutcome]]:
        async with target(options, {"voice": voice}, **settings) as found:
            with progress(f"{', '.join(loads)}: about {seconds:.0f} s"):
                return found.info, {name: await held(found.node) for name, held in loads.items()}

    info, outcomes = run(main())
    for name, outcome in outcomes.items():
        rows = [
            (one.what, *("-" if n is None else f"{n:g}" for n in (one.found, one.most)), "yes" if one.kept else "NO")
            for one in outcome.promises
        ]
        report.table(f"{name}, {info['engine']}: {TITLES[name]}", ("promise", "found", "at most", "kept"), rows)
        figures = outcome.figures
        print(
            f"{figures['visits']} sessions, {figures['mean_in_flight']} at once on average and"
            f" {figures['peak_in_flight']} at most; first audio p50 {figures['ttfa_ms']['p50']} ms; client lag p99"
            f" {figures['client_lag_ms']['p99']} ms; errors {report.counted(figures['errors'])}\n"
        )
    outputs.write(kind, info, [{"load": name, **outcome.as_dict()} for name, outcome in outcomes.items()])
    if broken := sum(not promise.kept for outcome in outcomes.values() for promise in outcome.promises):
        raise complain(f"{broken} of the promises above are broken", 1)
