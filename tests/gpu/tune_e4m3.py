"""Measures tiles of linear layers with weights in e4m3 on this GPU: `python -m tests.gpu.tune_e4m3`, under a minute.

A line per product of the released models and batch: microseconds in bfloat16, of the tile that `tiles` chooses, by
dequantising before cuBLAS, and of the three fastest candidates. All cores compile the candidates first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from os import environ, sched_getaffinity

import torch
from torch import Tensor
from torch.nn import functional as F
from triton.testing import do_bench

from agent_tts.model.kernels import launch, tiles
from agent_tts.model.kernels.ahead import Rehearsal, compile_all
from agent_tts.model.kernels.architectures import architecture
from agent_tts.model.kernels.linear import linear
from agent_tts.model.kernels.tiles import Tile
from agent_tts.model.quantised import Quantised
from tests.gpu.tune_tiles import LINEAR, TooLarge, refuse

BATCHES = (1, 16, 64, 128, 256)


def candidates(batch: int, gated: bool) -> Iterable[Tile]:
    if batch == 1:
        sides = [(0, n, 2048, warps, 1, 1) for n, warps in ((2, 4), (4, 4), (8, 4), (16, 4), (8, 8))]
    elif batch <= 64:
        sizes = [(16, 256, 4, 3), (32, 128, 4, 4), (32, 256, 4, 3), (64, 128, 4, 3)]
        sides = [(batch, *size, splits) for size, splits in product(sizes, (1, 2) if gated else (1, 2, 4))]
    else:
        wide = [
            (128, 64, 64, 8, 4),
            (128, 128, 64, 8, 3),
            (128, 64, 128, 8, 3),
            (64, 64, 128, 4, 3),
            (64, 128, 64, 4, 3),
        ]
        sides = [(*size, splits) for size, splits in product(wide, (1, 2) if gated else (1, 2, 4))]
    return [Tile(*side) for side in sides]


def layer(batch: int, outputs: int, inputs: int, gated: bool, device: str) -> tuple[Tensor, Quantised]:
    x = torch.randn(batch, inputs, device=device).bfloat16()
    return x, Quantised.of(torch.randn(outputs * (1 + gated), inputs, device=device) * inputs**-0.5)


def dequantised(x: Tensor, matrix: Quantised) -> Tensor:
    return F.linear(x, matrix.values.to(x.dtype))


def compile_candidates(name: str) -> None:
    """In a process of its own, without CUDA."""
    rehearsal = Rehearsal(architecture(name))
    with launch.unmade(rehearsal):
        for batch, (outputs, inputs, gated) in product(BATCHES, LINEAR):
            x, matrix = layer(batch, outputs, inputs, gated, "meta")
            for tile in (None, *candidates(batch, gated)):
                linear(x, matrix, gated=gated, tile=tile)
    kernels = list(rehearsal.launches.values())
    failed = compile_all(kernels, architecture(name), len(sched_getaffinity(0)), lambda done, total: None)
    print(f"{len(kernels)} kernels compiled, {failed} not", flush=True)


def microseconds(run: Callable[[], object]) -> float:
    try:
        return float(do_bench(run, warmup=3, rep=15, return_mode="median")) * 1_000
    except (TooLarge, RuntimeError):
        return float("inf")


def main() -> None:
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        environ["TRITON_CACHE_DIR"] = folder
        subprocess.run([sys.executable, "-m", "tests.gpu.tune_e4m3", f"sm_{major}{minor}"], check=True)
        setattr(launch, "with_fewer_stages", refuse)  # noqa: B010 - mypy refuses a plain assignment
        for batch, (outputs, inputs, gated) in product(BATCHES, LINEAR):
            x, matrix = layer(batch, outputs, inputs, gated, "cuda")
            plain = matrix.dequantised(torch.bfloat16)
            known = tiles.e4m3_tile(batch, outputs, inputs, gated)
            times = {
                tile: microseconds(partial(linear, x, matrix, gated=gated, tile=tile))
                for tile in candidates(batch, gated)
            }
            best = "; ".join(f"{tile} {times[tile]:.1f}" for tile in sorted(times, key=lambda tile: times[tile])[:3])
            bfloat16 = microseconds(partial(linear, x, plain, gated=gated))
            chosen = microseconds(partial(linear, x, matrix, gated=gated, tile=known))
            twice = microseconds(partial(dequantised, x, matrix))
            print(
                f"{batch} x {inputs} -> {outputs}{' gated' if gated else ''}: bfloat16 {bfloat16:.1f}, dequantised "
                f"{twice:.1f}, {known} {chosen:.1f}; fastest {best}".replace("Tile", ""), flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    compile_candidates(sys.argv[1]) if sys.argv[1:] else main()
