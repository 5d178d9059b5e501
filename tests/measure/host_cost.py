"""What a step of qwen3 costs the host, without a device: `python -m tests.measure.host_cost CHECKPOINT`.

The engine's loop, scheduler, rows and wire are the real ones; a frame is made of prepared numbers, and costs nothing.
What changes of rows write goes to a state on the CPU: these are torch's operations, as on a GPU, but not their launch.
Prints us: of a step in which N rows speak; of a new request's opening, its first word up to the launch, and the way of
its first frame from there to the wire, each with the caches as the requests before left them, and emptied.
"""

from __future__ import annotations

import cProfile
import itertools
import pstats
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from agent_tts import messages
from agent_tts.config.settings import Checkpoint, Qwen3, Settings
from agent_tts.engine.loop import EngineLoop, policy
from agent_tts.engine.qwen3.engine import Qwen3Engine
from agent_tts.engine.qwen3.graphs import BUCKETS, PrefillBudget, StepResult
from agent_tts.engine.scheduler import Scheduler
from agent_tts.engine_info import FRAME_BYTES
from agent_tts.ipc.wire import TO_ENGINE, Decoder, encode
from agent_tts.messages import EngineEvent
from agent_tts.options import EngineOptions, NamedVoice
from agent_tts.system.in_child import settle

SLOTS = 64
VOICE = EngineOptions(NamedVoice("ryan"), lead_ms=None)
TEXT = "Your order left our warehouse this morning, and it will be with you by tomorrow at noon. " * 20
WORD = "Unbelievably "
PREPARED = 64  # frames of each row, of which none loops
WARM_STEPS = 20
CACHE_BYTES = 128 << 20  # more than the caches of a processor hold


class Launched:
    def __init__(self, size: int, result: StepResult, on_launch: Callable[[], None]) -> None:
        self.size, self._result = size, result
        on_launch()

    def ready(self) -> bool:
        return True

    def result(self) -> StepResult:
        return self._result

    def device_s(self) -> float:
        return 0.0


class Device:
    """Stands in for the graphs of a GPU."""

    prefill_budget = PrefillBudget(128, cut=True)
    wanted: Sequence[Any] = ()

    def __init__(self, hidden_size: int) -> None:
        self._start = torch.zeros(hidden_size)
        draw, yes = np.random.default_rng(0), np.ones(SLOTS, np.bool_)
        pcm = draw.integers(-9_000, 9_000, (SLOTS, 1_920)).astype(np.int16)
        self._results = [
            StepResult(draw.integers(0, 1_000, (SLOTS, 16)).astype(np.int16), pcm, ~yes, yes) for _ in range(PREPARED)
        ]
        self._number = itertools.count()
        # Of the last step: its rows, and when it was launched.
        self.rows = 0
        self.launched_at = 0.0

    def step(
        self, rows: Sequence[int], parts: Sequence[Any] = (), *, timed: bool = False
    ) -> tuple[Launched | None, list[torch.Tensor]]:
        embedded = [self._start for _ in parts]
        self.rows = len(rows)
        if not rows:
            return None, embedded
        whole, n = self._results[next(self._number) % PREPARED], len(rows)
        size = next(size for size in BUCKETS if size >= n)
        result = StepResult(whole.codes[:n], whole.pcm[:n], whole.ended[:n], whole.finite[:n])
        return Launched(size, result, self._launch), embedded

    def _launch(self) -> None:
        self.launched_at = time.perf_counter()


class Node:
    """An engine in this process, its commands and events as bytes."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(
            slots=SLOTS, qwen3=Qwen3(models=(Checkpoint(source=str(folder)),), device="cpu", max_model_len=2_048)
        )
        self.engine = Qwen3Engine(settings, SLOTS)
        (model,) = self.engine._models
        device: Any = Device(model.config.talker.hidden_size)
        model.runner._graphs, model.runner._budget = device, device.prefill_budget
        self.device: Device = device
        self.engine._overlaps, self.engine.batch_sizes = True, BUCKETS
        self.loop = EngineLoop(self.engine, Scheduler(policy(settings, SLOTS, BUCKETS)))
        self._decoder: Decoder[Any] = Decoder(TO_ENGINE)
        self._ids = itertools.count(1)

    def submit(self, *commands: Any) -> None:
        for command in self._decoder.feed(b"".join(map(encode, commands))):
            self.loop.submit(command)

    def step(self) -> tuple[list[EngineEvent], float]:
        """The events of a step as they are encoded; how long it took, in seconds."""
        began = time.perf_counter()
        new = self.loop.step()
        b"".join([encode(event) for event in new])
        return new, time.perf_counter() - began

    def open(self) -> int:
        request_id = next(self._ids)
        self.submit(messages.Open(request_id, VOICE, request_id))
        return request_id

    def grant(self, new: Sequence[EngineEvent]) -> None:
        heard = [event for event in new if isinstance(event, messages.Audio)]
        self.submit(*[messages.Credit(one.id, len(one.pcm) // FRAME_BYTES) for one in heard])
        assert not any(isinstance(event, messages.Finished) and event.code for event in new), new


def steady(node: Node, rows: int, steps: int, profile: cProfile.Profile | None = None) -> float:
    """Seconds of a step in which `rows` requests speak."""
    ids = [node.open() for _ in range(rows)]
    for request_id in ids:
        node.submit(messages.Append(request_id, TEXT), messages.End(request_id))
    took: list[float] = []
    while len(took) < WARM_STEPS + steps:
        if profile is not None and len(took) > WARM_STEPS:
            profile.enable()
        new, step_s = node.step()
        if profile is not None:
            profile.disable()
        node.grant(new)
        if node.device.rows == rows:
            took.append(step_s)
    node.submit(*map(messages.Cancel, ids))
    clear(node)
    return median(took[WARM_STEPS:])


def first(
    node: Node, requests: int, profile: cProfile.Profile | None = None, *, cold: bool = False
) -> tuple[float, float, float]:
    """Seconds of a new request alone: from the bytes of its opening to the end of the step that takes it; from the
    bytes of its first word to the launch of its first frame; and from there to the encoded audio.

    Args:
        cold: caches are emptied before each of the first two.
    """
    opened, launched, told = [], [], []
    for _ in range(requests):
        empty_caches(cold)
        began = time.perf_counter()
        request_id = node.open()
        node.step()
        while node.loop.wait_s() == 0:
            node.step()
        opened.append(time.perf_counter() - began)
        node.device.launched_at = 0.0
        empty_caches(cold)
        if profile is not None:
            profile.enable()
        began = time.perf_counter()
        node.submit(messages.Append(request_id, WORD), messages.Append(request_id, WORD))
        while not node.device.launched_at:
            node.step()
        at = node.device.launched_at
        launched.append(at - began)
        while not any(isinstance(event, messages.Audio) for event in node.step()[0]):
            pass
        told.append(time.perf_counter() - at)
        if profile is not None:
            profile.disable()
        node.submit(messages.Cancel(request_id))
        clear(node)
    return median(opened), median(launched), median(told)


def empty_caches(wanted: bool) -> None:
    if wanted:
        np.ones(CACHE_BYTES, np.uint8).sum()


def clear(node: Node) -> None:
    """Step until nothing is left."""
    while node.loop.wait_s() == 0 or node.loop.load != (0, 0):
        node.step()


def main(
    checkpoint: Path,
    rows: Annotated[str, typer.Option(help="Requests that speak.")] = "1,8,64",
    steps: Annotated[int, typer.Option(help="Of each, or requests.")] = 200,
    profile: Annotated[bool, typer.Option(help="Print where the time is.")] = False,
) -> None:
    """Measure."""
    torch.set_num_threads(1)
    node = Node(checkpoint)
    first(node, 20)
    settle()
    for count in map(int, rows.split(",")):
        prof = cProfile.Profile() if profile else None
        print(f"step of {count}: {1e6 * steady(node, count, steps, prof):.0f} us", flush=True)
        show(prof)
    for cold in (False, True):
        prof = cProfile.Profile() if profile else None
        opened, launched, told = (1e6 * each for each in first(node, steps, prof, cold=cold))
        how = "caches emptied" if cold else "warm"
        print(f"{how}: opening {opened:.0f} us, first word to launch {launched:.0f}, launch to audio {told:.0f}")
        show(prof)
    node.engine.close()


def show(profile: cProfile.Profile | None) -> None:
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(32)


if __name__ == "__main__":
    typer.run(main)
