"""First audio and gaps of callers as they come, by simulation: `python -m tests.measure.arrivals`.

The real scheduler, loop and engine run in virtual time over steps that take as long as those of a GPU and compute
nothing; the host's Python takes its time, too. Nothing of a front is simulated: `WAYS_MS` stands for the ways in and
out. `bench serve --burst`, `--beside` and `--in-phase` measure the same.
"""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Annotated

import pytest
import typer
from loguru import logger

from agent_tts.bench.scenario import texts_of
from agent_tts.bench.statistics import percentile
from tests.engine.qwen3.simulated import VOICE, Listener, Node
from tests.model.tiny import checkpoint

WAYS_MS = 1.4
WORDS, WORD_S, FRAMES = 20, 0.040, 60
SLOTS = 880
BULK = replace(VOICE, lead_ms=None)
WARMUP_S = 4.0

Ids = Iterator[int]


def pieces(words: int = WORDS) -> Iterator[Sequence[str]]:
    return itertools.cycle([[f"{word} " for word in text.split()] for text in texts_of(words)])


def at_rate(node: Node, ids: Ids, rate: float, begin: float, end: float, word_s: float = WORD_S) -> list[Listener]:
    """Callers at random times, so many a second."""
    draw, texts, when, asked = random.Random(0), pieces(), begin, []
    while (when := when + draw.expovariate(rate)) < end:
        asked.append(node.ask(next(ids), when, next(texts), word_s))
    return asked


def callers(node: Node, ids: Ids, count: int, ramp_s: float) -> list[Listener]:
    """Callers who ask again when they have heard the speech before."""
    texts, asked = pieces(), []

    def ask(when: float) -> None:
        asked.append(node.ask(next(ids), when, next(texts), WORD_S))

    for number in range(count):
        ask(number * ramp_s / count)
    node.on_end = lambda request_id: ask(node.listeners[request_id].player.plays_until)
    return asked


def burst(node: Node, ids: Ids, count: int, begin: float) -> list[Listener]:
    """So many new callers within a second, at random times."""
    draw, texts = random.Random(1), pieces()
    times = sorted(begin + draw.random() for _ in range(count))
    return [node.ask(next(ids), when, next(texts), WORD_S) for when in times]


def beside(node: Node, ids: Ids, count: int, ramp_s: float = 1.0) -> list[Listener]:
    """Streams without a pace whose whole text is there: each asks again when it ends."""
    texts, asked, mine = pieces(), [], set[int]()

    def ask(when: float) -> None:
        mine.add(number := next(ids))
        asked.append(node.ask(number, when, ["".join(next(texts))], 0.0, BULK))

    for number in range(count):
        ask(ramp_s * number / count)
    before = node.on_end

    def again(request_id: int) -> None:
        if request_id in mine:
            ask(node.clock.now + 0.002)
        before(request_id)

    node.on_end = again
    return asked


def in_phase(node: Node, ids: Ids, count: int, rounds: int) -> list[Listener]:
    """Callers who all begin within one second, and so again each 4.8 s."""
    return [one for number in range(rounds) for one in burst(node, ids, count, 4.8 * number)]


def row(name: str, node: Node, asked: Sequence[Listener], begin: float, end: float) -> str:
    """Figures of the requests of a load that came in this time, as a line of Markdown."""
    mine = [one for one in asked if one.steps is not None and begin <= one.first_text_at < end]
    first_ms = [1_000 * one.waited[1] + WAYS_MS for one in mine if one.waited is not None]
    shown = " / ".join(f"{percentile(first_ms, percent) or 0:.0f}" for percent in (50, 95, 99, 100))
    gaps = [seconds for one in mine for _, seconds in one.player.gaps]
    callers = sum(bool(one.player.gaps) for one in mine)
    steps = [step for step in node.device.steps if begin <= step[0] < end]
    busy = sum(step_end - step_begin for step_begin, step_end, _ in steps) / (end - begin)
    rows = sum(count for _, _, count in steps) / max(1, len(steps))
    audio = sum(s for one in node.listeners.values() for at, s in one.heard if begin <= at < end) / (end - begin)
    longest = 1_000 * max(gaps, default=0.0)
    columns = [name, shown, f"{callers} of {len(mine)}", f"{longest:.0f}", f"{100 * busy:.0f} %", f"{rows:.0f}"]
    return f"| {' | '.join(columns)} | {audio:.0f} |"


Load = Callable[[Node, Ids], list[Listener]]


def _alone(count: int) -> Load:
    return lambda node, ids: beside(node, ids, count)


def _beside(count: int) -> Load:
    def both(node: Node, ids: Ids) -> list[Listener]:
        beside(node, ids, count)
        return at_rate(node, ids, 10, 1, 16)

    return both


# What is asked, and from when to when it counts.
LOADS: dict[str, tuple[Load, float, float]] = {
    "1 a second": (lambda node, ids: at_rate(node, ids, 1, 0, 24, 0.01), WARMUP_S, 24),
    "10 a second alone": (lambda node, ids: at_rate(node, ids, 10, 0, 14, 0.01), WARMUP_S, 14),
    "100 a second": (lambda node, ids: at_rate(node, ids, 100, 0, 12, 0.01), WARMUP_S, 12),
    "200 a second": (lambda node, ids: at_rate(node, ids, 200, 0, 15), WARMUP_S, 15),
    "800 callers": (lambda node, ids: callers(node, ids, 800, 5.0), 8.0, 16),
    "512 within 1 s": (lambda node, ids: burst(node, ids, 512, WARMUP_S), WARMUP_S, 10),
    "496 in phase": (lambda node, ids: in_phase(node, ids, 496, 4), WARMUP_S, 20),
    **{f"beside {count}": (_beside(count), WARMUP_S, 14) for count in (64, 256, 288, 512)},
    **{f"{count} alone": (_alone(count), WARMUP_S, 10) for count in (256, 288, 512)},
}


@contextmanager
def simulated(slots: int = SLOTS, frames: int = FRAMES) -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        node = Node(str(checkpoint("custom_voice")), slots, monkeypatch, frames)
        with closing(node.engine):
            yield node


def main(
    only: Annotated[str, typer.Option(help="loads whose name has this")] = "",
    host: Annotated[float, typer.Option(min=0, help="how slow the host is, 1 for that of an H200")] = 1.0,
) -> None:
    """Print first audio, gaps and the GPU's load, as a table in Markdown."""
    logger.remove()
    gc.disable()
    columns = ["load", "first audio, p50 / p95 / p99 / most, ms", "with gaps", "longest, ms", "GPU busy", "rows a step"]
    print(f"| {' | '.join(columns)} | audio s/s |")
    print("|---|---|---|---|---|---|---|")
    for name, (load, begin, end) in LOADS.items():
        if only in name:
            with simulated() as node:
                node.host = host
                asked = load(node, itertools.count())
                node.run(end)
                print(row(name, node, asked, begin, end), flush=True)


if __name__ == "__main__":
    typer.run(main)
