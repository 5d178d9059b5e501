"""First audio of requests at random times, by simulation: `python -m tests.measure.arrivals --rate 1,20,100`.

The real scheduler, loop and engine run in virtual time over steps that take as long as those of an H200 and compute
nothing. Nothing of a front is simulated: `WAYS_MS` stands for the way in and out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Annotated

import pytest
import typer
from loguru import logger

from agent_tts.bench.scenario import texts_of
from agent_tts.bench.statistics import percentile
from agent_tts.cli.bench_options import counts, numbers
from agent_tts.errors import SettingsError
from tests.engine.qwen3.simulated import Node
from tests.model.tiny import checkpoint

WAYS_MS = 1.4
SLOTS = 512  # for requests at random times
WARMUP_S = 6.0
# Of a request at random times, and of one of a steady caller.
WORDS, WORDS_S, FRAMES = 20, 0.010, 60
STEADY_WORDS, STEADY_WORDS_S, STEADY_FRAMES = 40, 0.040, 150
RAMP_S = 4.0  # in which steady callers begin


def arrivals(node: Node, rate: float, end: float, seed: int) -> None:
    """Requests at random times, so many a second."""
    draw, texts = random.Random(seed), itertools.cycle(_pieces(WORDS))
    when = 0.0
    for request_id in itertools.count():
        when += draw.expovariate(rate)
        if when > end:
            return
        node.ask(request_id, when, next(texts), WORDS_S)


def streams(node: Node, count: int) -> None:
    """Callers who make one request after the other."""
    ids, texts = itertools.count(count), itertools.cycle(_pieces(STEADY_WORDS))
    for number in range(count):
        node.ask(number, number * RAMP_S / count, next(texts), STEADY_WORDS_S)
    node.on_end = lambda _: node.ask(next(ids), node.clock.now, next(texts), STEADY_WORDS_S)


def row(name: str, node: Node, begin: float, end: float) -> str:
    """Figures of the requests that came in this time, as a line of Markdown."""
    heard = [
        listener
        for listener in node.listeners.values()
        if listener.waited is not None and begin <= listener.first_text_at < end
    ]
    first_ms = [1_000 * listener.waited[1] + WAYS_MS for listener in heard if listener.waited is not None]
    shown = " / ".join(f"{percentile(first_ms, percent) or 0:.1f}" for percent in (50, 95, 99, 100))
    steps = [step for step in node.device.steps if begin <= step[0] < end]
    busy = sum(step_end - step_begin for step_begin, step_end, _ in steps) / (end - begin)
    rows = sum(count for _, _, count in steps) / max(1, len(steps))
    gaps = sum(bool(listener.player.gaps) for listener in node.listeners.values())
    margin_ms = 1_000 * min((listener.player.least_margin_s for listener in node.listeners.values()), default=0.0)
    return f"| {name} | {len(heard)} | {shown} | {100 * busy:.0f} % | {rows:.1f} | {gaps} | {margin_ms:.0f} |"


def _pieces(words: int) -> list[Sequence[str]]:
    return [[f"{word} " for word in text.split()] for text in texts_of(words)]


def main(
    rate: Annotated[str, typer.Option(help="new requests a second, with commas")] = "1,20,100",
    steady: Annotated[str, typer.Option(help="callers at once, with commas")] = "",
    duration: Annotated[float, typer.Option(min=1, help="measured, virtual seconds")] = 30.0,
    seed: Annotated[int, typer.Option(help="of the times of the requests, and of late steps")] = 0,
    late: Annotated[float, typer.Option(min=0, max=1, help="share of the steps that the host begins late")] = 0.0,
    late_ms: Annotated[float, typer.Option(min=0, help="by half of this to all of it")] = 20.0,
) -> None:
    """Print first audio, the GPU's load and underruns, as a table in Markdown."""
    try:
        rates, callers = numbers("--rate", rate), counts("--steady", steady) if steady else ()
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    logger.remove()
    end = WARMUP_S + duration
    folder = str(checkpoint("custom_voice"))

    @contextmanager
    def node(slots: int, frames: int) -> Iterator[Node]:
        draw = random.Random(seed)
        with pytest.MonkeyPatch.context() as monkeypatch:
            one = Node(folder, slots, monkeypatch, frames)
            one.device.late_s = lambda: draw.uniform(0.5, 1) * late_ms / 1_000 if draw.random() < late else 0.0
            with closing(one.engine):
                yield one

    print(
        "| load | requests | first audio, p50 / p95 / p99 / most, ms | GPU busy | rows a step | gaps | least ms ahead |"
    )
    print("|---|---|---|---|---|---|---|")
    for load in rates:
        with node(SLOTS, FRAMES) as one:
            arrivals(one, load, end, seed)
            one.run(end)
            print(row(f"{load:g}/s", one, WARMUP_S, end), flush=True)
    for count in callers:
        with node(count, STEADY_FRAMES) as one:
            streams(one, count)
            one.run(end)
            print(row(f"{count} callers", one, WARMUP_S, end), flush=True)


if __name__ == "__main__":
    typer.run(main)
