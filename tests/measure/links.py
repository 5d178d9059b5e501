"""Measure what fronts that share an engine cost. `python -m tests.measure.links --help`.

A tone engine speaks paced streams over stdin and stdout (0 links), or over 1, 2, ... links of this process, which is
all fronts at once. Each reads its frames and grants credit, and does nothing else. The rounds are interleaved.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Annotated

import typer

from agent_tts.bench.node import cpu_s
from agent_tts.cli.options import command
from agent_tts.config.settings import Settings
from agent_tts.ipc.engine_process import EngineProcess
from agent_tts.messages import (
    Append,
    Audio,
    Credit,
    EngineCommand,
    EngineEvent,
    Finished,
    Open,
)
from agent_tts.options import EngineOptions

WARM_S = 1.0
TEXT = "word " * 3_000


class Listeners:
    """The streams of one front."""

    def __init__(self) -> None:
        self.frames = 0
        self.failed = 0
        # Frames of each request since its last credit.
        self._taken: dict[int, int] = defaultdict(int)
        self.send: Callable[[EngineCommand], None] = lambda command: None

    def on_events(self, new: list[EngineEvent]) -> None:
        for event in new:
            if isinstance(event, Audio):
                self.frames += 1
                self._taken[event.id] += 1
                if self._taken[event.id] == 6:
                    self.send(Credit(event.id, 6))
                    self._taken[event.id] = 0
            elif isinstance(event, Finished):
                self.failed += 1

    def open(self, streams: range) -> None:
        """Begin streams that do not end."""
        for number in streams:
            self.send(Open(number, EngineOptions(seed=number)))
            self.send(Append(number, TEXT))


async def measure(links: int, streams: int, seconds: float) -> tuple[float, float, float]:
    """CPU of engine and fronts in us a frame, and frames a second."""
    settings = Settings.model_validate(
        {"engine": "tone", "slots": streams, "limits": {"max_frames": 100_000, "context_s": 600}}
    )
    fronts = [Listeners() for _ in range(max(1, links))]
    process = EngineProcess(settings, fronts[0].on_events if not links else lambda _: None, lambda _: None)
    await process.start()
    ends = []
    if links:
        from agent_tts.ipc.engine_link import EngineLink

        assert process.greeting is not None
        for front in fronts:
            link = EngineLink(lambda: None, settings.timeouts.engine_heartbeat_s, front.on_events, lambda _: None)
            await link.connect(process.attach(), process.greeting)
            front.send = link.send
            ends.append(link)
    else:
        fronts[0].send = process.send
    for number, front in enumerate(fronts):
        front.open(range(1 + number, 1 + streams, len(fronts)))
    await asyncio.sleep(WARM_S)
    assert process.pid is not None
    begun, at = [cpu_s(process.pid) or 0.0, time.process_time()], time.monotonic()
    frames = sum(front.frames for front in fronts)
    await asyncio.sleep(seconds)
    used = [(cpu_s(process.pid) or 0.0) - begun[0], time.process_time() - begun[1]]
    took_s, frames = time.monotonic() - at, sum(front.frames for front in fronts) - frames
    assert not sum(front.failed for front in fronts), "a stream has ended"
    for end in ends:
        await end.close()
    await process.close()
    return used[0] / frames * 1e6, used[1] / frames * 1e6, frames / took_s


@command
def main(
    streams: Annotated[int, typer.Option(help="Paced streams in all.")] = 200,
    seconds: Annotated[float, typer.Option(help="Length of a round.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 3,
    links: Annotated[str, typer.Option(help="Numbers of links; 0 is stdin and stdout.")] = "0,1,2,8",
) -> None:
    """Print the CPU of a frame by the number of links."""
    import uvloop

    found: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for count in map(int, links.split(",")):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found[count].append(runner.run(measure(count, streams, seconds)))
    print(f"{streams} streams, {os.cpu_count()} cores, us of CPU a frame: median of {rounds} rounds (least, most)")
    for count, each in found.items():
        engine, front = (
            f"{median(values):5.1f} ({min(values):.1f}, {max(values):.1f})"
            for values in ([one[part] for one in each] for part in (0, 1))
        )
        print(f"{count} links: engine {engine}, fronts {front}, {median([one[2] for one in each]):.0f} frames/s")


if __name__ == "__main__":
    typer.run(main)
