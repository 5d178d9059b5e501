"""Where a frame's time is, kernel by kernel: `python -m tests.gpu.profile_frame BATCH...`, on a GPU.

Prints a line per kernel and grid of a replayed graph of a frame: how many there are, the microseconds of all, and of
one. Kernels overlap the ones before them, and a kernel's time includes its wait: lines add up to more than a frame.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile

from agent_tts.bench.frame import mid_speech, synthetic
from agent_tts.model.speech import SpeechModel, accelerate

CONTEXT = 300
REPLAYS = 5
SHOWN = 45


@torch.inference_mode()
def profile_batch(model: SpeechModel, rows: int) -> None:
    state = mid_speech(model, rows, CONTEXT)
    run, position = torch.ones_like(state.frame.ended), state.frame.position.clone()

    def step() -> None:
        state.frame.position.copy_(position)
        state.frame.text_read.zero_()
        model.step(state, run)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = [one for one in json.loads(path.read_text())["traceEvents"] if one.get("cat") == "kernel"]
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        grid = "x".join(map(str, event["args"]["grid"]))
        found[event["name"][:60], grid].append(event["dur"])
    begins, ends = min(one["ts"] for one in events), max(one["ts"] + one["dur"] for one in events)
    print(f"batch {rows}: {len(events) // REPLAYS} kernels, {(ends - begins) / REPLAYS:.0f} us a replay")
    for (name, grid), times in sorted(found.items(), key=lambda item: -sum(item[1]))[:SHOWN]:
        total = sum(times) / REPLAYS
        print(f"  {total:8.1f} us  {len(times) // REPLAYS:4} x {sum(times) / len(times):7.2f}  {grid:>12}  {name}")
    print(flush=True)


def main(*batches: str) -> None:
    model = synthetic("1.7B")
    accelerate(model)
    for rows in batches or ("1", "8", "64", "256"):
        profile_batch(model, int(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
