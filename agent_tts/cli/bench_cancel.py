"""The run of `agent-tts bench cancel`: from options to a full node, cancels, and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_tts.bench import report
from agent_tts.bench.cancel import EVENTS, START_S, Plan, measure_cancels
from agent_tts.cli.bench_runs import SPARE_CONNECTIONS, tell_memory
from agent_tts.cli.bench_shared import Bar, Outputs, run
from agent_tts.cli.bench_target import Source, target
from agent_tts.config.settings import Limits

NAMES = {
    "cancelled": "context.cancelled",
    "done": "context.done",
    "started": "slot is the waiting one's",
    "first_audio": "its first audio",
}


def run_cancel(source: Source, plan: Plan, outputs: Outputs) -> None:
    """Measure, print, and write down.

    Raises:
        SpeechError: the node cannot be measured.
    """
    settings = {
        "slots": plan.streams,
        "queue": plan.streams,
        "timeouts__queue_s": START_S,
        "limits__connections": max(Limits().connections, plan.streams + SPARE_CONNECTIONS),
        "limits__contexts_per_session": plan.per_connection,
    }

    async def main() -> tuple[dict[str, Any], dict[str, Any], dict[str, list[float]]]:
        async with target(source, plan.session, **settings) as node:
            with Bar(None) as bar:
                asked = replace(plan, session=node.session)
                found = await bar.during("cancelling", measure_cancels(node.url, node.key, asked))
                return node.info, *found

    info, figures, times = run(main())
    rows = [(NAMES[event], *figures[f"{event}_ms"].values()) for event in EVENTS]
    title = f"{info['engine']}, {info['model']}: ms from a cancel on, all {plan.streams} slots speaking"
    report.table(title, ("until", "p50", "p99", "most"), rows)
    print(f"{figures['cancels']} cancels; client lag p99 {figures['client_lag_ms']['p99']} ms")
    tell_memory(info)

    def draw(picture: report.Plot) -> None:
        runs: Sequence[tuple[str, Sequence[float]]] = [(NAMES[event], times[event]) for event in EVENTS]
        labels = ("ms from a cancel on", "share of cancels")
        picture.times(f"{info['engine']} engine, {plan.streams} streams", runs, labels)

    outputs.write("cancel", info, [figures], draw)
