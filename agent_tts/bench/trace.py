"""`bench trace`: where the time to first audio goes, from the client's and the node's clocks.

A client sends a trace id with each connection; the node's span of its context tells when the request passed which stage
(`telemetry.stages`). All processes are on one machine, so that their clocks agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from agent_tts.bench.scenario import CallSample
from agent_tts.bench.statistics import percentiles

SENT, HEARD = "sent", "heard"  # at the client; the other points are events of the node's span
# What a request goes through, one after the other: a stage, and the point where it ends.
STAGES = (
    ("socket", "received"),
    ("decode", "text"),
    ("session", "submitted"),
    ("ipc", "taken"),
    ("scheduler", "scheduled"),
    ("prompt", "stepped"),
    ("prepare", "launching"),
    ("launch", "launched"),
    ("compute", "computed"),
    ("read back", "read_back"),
    ("hand out", "handed_out"),
    ("ipc back", "first_audio"),
    ("send", HEARD),
)
BAR_WIDTH = 48  # characters

Points = Mapping[str, float]  # seconds, on one clock


def stages_ms(points: Points) -> dict[str, float] | None:
    """How long each stage took; None where a point is missing."""
    names = (SENT, *(end for _, end in STAGES))
    if not all(name in points for name in names):
        return None
    ends = [points[name] for name in names]
    return {stage: (after - before) * 1_000 for (stage, _), before, after in zip(STAGES, ends, ends[1:], strict=False)}


def figures(name: str, calls: Sequence[CallSample], node: Mapping[str, Points]) -> dict[str, Any]:
    """Percentiles of the stages of some calls, in ms; `untraced` is how many calls are not among them."""
    timelines = []
    for call in calls:
        if call.sent_at is not None and call.first_audio_at is not None and call.error is None:
            ours = {SENT: call.sent_at, HEARD: call.first_audio_at}
            timelines.append(stages_ms({**node.get(call.trace_id or "", {}), **ours}))
    whole = [timeline for timeline in timelines if timeline is not None]
    return {
        "load": name,
        "requests": len(calls),
        "errors": dict(Counter(call.error for call in calls if call.error is not None)),
        "untraced": len(calls) - len(whole),
        "ttfa_ms": percentiles([sum(timeline.values()) for timeline in whole], 50, 95, digits=3),
        "stages": {
            stage: percentiles([timeline[stage] for timeline in whole], 50, 95, digits=3) for stage, _ in STAGES
        },
    }


def show(title: str, run: Mapping[str, Any], width: int | None = None) -> None:
    """Print the stages of a load, and the medians as bars on one line of time."""
    shown = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    shown.add_column("stage")
    for column in ("p50 ms", "p95 ms"):
        shown.add_column(column, justify="right")
    shown.add_column("medians, one after the other", min_width=BAR_WIDTH)
    whole, begin = sum(stage["p50"] for stage in run["stages"].values()), 0.0
    for name, _ in STAGES:
        p50, p95 = run["stages"][name].values()
        bar = Bar(whole or 1.0, begin, begin + p50, width=BAR_WIDTH)
        shown.add_row(name, f"{p50:.3f}", f"{p95:.3f}", bar)
        begin += p50
    shown.add_row("first audio", *(f"{value:.3f}" for value in run["ttfa_ms"].values()))
    Console(highlight=False, width=width).print(shown)
