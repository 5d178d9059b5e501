"""How many streams a node speaks in real time: N at once, each paced, each with a listener who plays it.

Listeners are in processes of their own, and figures are of all their samples together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_tts.bench.clients import READY_S, by_name, clients_for, jobs, start_time
from agent_tts.bench.lag import worst
from agent_tts.bench.node import cpu_percent
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import answers, workers
from agent_tts.events import FRAME_MS

WORD = "speech "
CHARS_PER_S = 100  # a word for every frame: while there is text to read, no model can end its speech
SPARE_S = 2.0
MAX_WORDS = 2_800  # below the limit for the text of one context
MARGIN_S = 30.0  # for a process to answer, beyond what it measures
MODULE = "agent_tts.bench.streams_client"


@dataclass(frozen=True, slots=True)
class Plan:
    """How streams are held."""

    seconds: float = 30.0  # measured, once all have begun
    ramp_s: float = 2.0  # in which they begin, evenly
    per_connection: int = 16
    session: dict[str, Any] = field(default_factory=dict)  # lead_ms, voice and the like

    @property
    def text(self) -> str:
        """What each stream says."""
        spoken_s = self.seconds + self.ramp_s + (self.session.get("lead_ms") or 0) / 1_000 + SPARE_S
        return WORD * min(round(CHARS_PER_S * spoken_s / len(WORD)), MAX_WORDS)


@dataclass(slots=True)
class Sample:
    """One stream, as its listener heard it."""

    started: bool
    ended: str | None  # why it ended before it was to
    gap_times: list[float]  # when its listener had run dry and went on
    gaps_s: float
    margins_ms: list[float]  # how long before its turn each chunk came; negative is late


async def hold(
    url: str,
    key: str | None,
    count: int,
    plan: Plan,
    pids: Mapping[str, int],
    *,
    clients: int | None = None,
) -> dict[str, Any]:
    """Hold `count` streams; their figures. Cancelling it ends them.

    Args:
        pids: processes whose share of the CPU is told, by name.
        clients: processes that listen; None is as many as it takes.

    Raises:
        SpeechError: the node refuses the connections.
    """
    parts = min(count, clients or clients_for(count * 1_000 / FRAME_MS, count))
    async with workers(MODULE, jobs(parts, url, plan, count=count), key=key, ready_s=READY_S) as found:
        start = start_time()
        window = (start + plan.ramp_s, start + plan.ramp_s + plan.seconds)
        asked, cpu = await asyncio.gather(
            answers(found, {"start": start}, window[1] - start + MARGIN_S),
            cpu_percent(by_name(pids, found), *window),
        )
    figures = figures_of([Sample(**sample) for answer in asked for sample in answer["samples"]], start)
    figures["clients"] = parts
    figures["client_lag_ms"] = worst([answer["lag_ms"] for answer in asked])
    figures["cpu_percent"] = cpu
    return figures


def figures_of(samples: Sequence[Sample], start: float) -> dict[str, Any]:
    """Figures of all streams, of which the first began at `start`."""
    gaps_at_s = [when - start for sample in samples for when in sample.gap_times]
    return {
        "streams": len(samples),
        "silent": sum(not sample.started for sample in samples),
        "ended": dict(Counter(sample.ended for sample in samples if sample.ended is not None)),
        "underruns": sum(bool(sample.gap_times) for sample in samples),
        "gaps": len(gaps_at_s),
        "gaps_at_s": percentiles(gaps_at_s, 0, 50, 100, digits=1),
        "gaps_s": round(sum(sample.gaps_s for sample in samples), 3),
        # How long before its turn a chunk came: the 1st percentile is what a listener can count on.
        "margin_ms": percentiles([ms for sample in samples for ms in sample.margins_ms], 50, 1, 0, digits=1),
    }


def is_clean(figures: dict[str, Any]) -> bool:
    """Whether every stream spoke without a gap."""
    return not (figures["underruns"] or figures["silent"] or figures["ended"])
