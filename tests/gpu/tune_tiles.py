"""Measures the tiles of `agent_tts.model.kernels.tiles` on this GPU: `python -m tests.gpu.tune_tiles linear ROWS...`.

Prints a line per product of the released models: its shape, the current tile and its time, and the fastest candidates
with theirs; None is cuBLAS. `... codec` does so for the codec. The tables are then edited by hand: they are rules over
shapes, not lists of shapes.

A time of a product is that of a CUDA graph of products one behind the other, each with weights of its own, so that no
weights are in the cache; norm or residual are included, as in the model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from time import perf_counter
from typing import NoReturn

import torch
from triton.testing import do_bench

from agent_tts.model.codec_fast import PackedConv, PackedLinear, Streams
from agent_tts.model.kernels import launch, tiles
from agent_tts.model.kernels.ahead import Rehearsal, compile_all
from agent_tts.model.kernels.architectures import ARCHITECTURES, architecture, of_nvidia
from agent_tts.model.kernels.linear import _by_cublas, linear, rms_norm
from agent_tts.model.kernels.tiles import Tile
from agent_tts.model.layers import RMSNorm

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Outputs, inputs, gated: the talker of 1.7B, and its predictor, whose sizes are those of the talker of 0.6B.
LINEAR = [
    *((4096, 2048, False), (2048, 2048, False), (6144, 2048, True), (2048, 6144, False)),
    *((4096, 1024, False), (1024, 2048, False), (3072, 1024, True), (1024, 3072, False)),
]
# Steps per frame, channels, outputs, taps: the codec's convolutions, and a linear layer of its transformer.
CODEC = [
    *((1, 512, 1024, 3), (4, 1024, 1536, 7), (4, 1536, 6144, 2), (32, 768, 1920, 2), (160, 384, 768, 2)),
    *((640, 192, 288, 2), (32, 768, 768, 7), (160, 384, 384, 7), (640, 192, 192, 7), (1920, 96, 96, 7)),
    *((1, 512, 3072, 1), (4, 4096, 1024, 1)),
]

PROCESSORS, SHARED = 132, ARCHITECTURES["sm_90"].shared  # of an H200
CACHED = 160 << 20  # bytes of weights of which none stays in the second-level cache
ROUNDS, REPLAYS = 5, 8
SHOWN = 4

Shape = tuple[int, int, int, bool]  # rows, outputs, inputs, gated


class TooLarge(Exception):
    """A tile does not fit this GPU."""


def refuse(kernel: object, arguments: object, why: str) -> NoReturn:
    """For `launch.with_fewer_stages`: another tile would be measured than the one that is reported."""
    raise TooLarge(why)


def linear_tiles(shape: Shape) -> Iterable[Tile]:
    """Those whose grid, shared memory and registers fit the processors."""
    rows, outputs, inputs, gated = shape
    few = rows <= tiles.TILE_ROWS
    heights = (max(16, launch.power_of_2(rows)),) if few else (64, 128, 256)
    widths = (64, 128, 256) if not few else (32, 64, 128) if rows > 32 else (16, 32)
    steps, warps, ahead = ((64, 128, 256, 512, 1024), (4, 8), (0, 256)) if few else ((64,), (4, 8), (0,))
    for height, width, step, threads, splits, early in product(
        heights, widths, steps, warps, (1, 2, 3, 4, 6, 8), ahead
    ):
        wide, span = width * (1 + gated), inputs // splits
        held = step == span  # its weights are read ahead, and no further steps
        stages = min(4, SHARED // (2 * step * (height + wide)))
        programs = -(-rows // height) * -(-outputs // width) * splits
        if (
            PROCESSORS // 3 <= programs <= 2.1 * PROCESSORS
            and inputs % splits == span % step == 0
            and (stages >= 1 and step >= 256 and not early if held else stages >= 3 and splits % 3)
            and height * wide <= 128 * 32 * threads  # float32 sums in registers
            and (threads == 4 or height * wide >= 128 * 64 or (held and step * wide >= 1 << 15))
            and splits * height * wide <= 1 << 15  # sums that a tile's last program reads
            and not early % step
        ):
            yield Tile(height, width, step, threads, stages, splits, early)


def products_of(shape: Shape, device: str) -> Callable[[Tile | None], int]:
    """Launches products one behind the other, and gives their number; None is cuBLAS."""
    rows, outputs, inputs, gated = shape
    empty = partial(torch.empty, device=device, dtype=torch.bfloat16)
    x, height = empty(rows, inputs).normal_(), outputs * (1 + gated)
    weights = empty(-(-CACHED // (2 * height * inputs)), height, inputs).normal_(std=inputs**-0.5)
    has_norm = gated or outputs == 4096
    norm = RMSNorm(inputs, 1e-6).to(x) if has_norm else None
    residual = None if has_norm else empty(rows, outputs).normal_()

    def run(tile: Tile | None) -> int:
        for weight in weights:
            if tile is None:
                _by_cublas(x if norm is None else rms_norm(x, norm), weight, None, residual, gated)
            else:
                linear(x, weight, norm=norm, residual=residual, gated=gated, tile=tile)
        return len(weights)

    return run


def compile_products(name: str, shapes: Iterable[Shape]) -> None:
    """Compiles all candidates, by all cores, in a process that has not used the GPU."""
    rehearsal = Rehearsal(architecture(name))
    with launch.unmade(rehearsal):
        for shape in shapes:
            run = products_of(shape, "meta")
            for tile in [tiles.linear_tile(*shape), *linear_tiles(shape)]:
                run(tile)
    cores = len(os.sched_getaffinity(0))
    compile_all(list(rehearsal.launches.values()), rehearsal.architecture, cores, lambda done, total: None)


def microseconds(run: Callable[[], int]) -> float:
    """Of one product, the shortest of several rounds."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        count = run()
    times = list[float]()
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        times.append((perf_counter() - start) * 1e6 / REPLAYS / count)
    return min(times)


def tune_products(all_rows: Sequence[int]) -> None:
    shapes = [(rows, *layer) for rows, layer in product(all_rows, LINEAR)]
    name = of_nvidia(torch.cuda.get_device_capability()).name
    subprocess.run([sys.executable, "-m", "tests.gpu.tune_tiles", "compile", name, *map(str, all_rows)], check=True)
    for shape in shapes:
        known, run, times = tiles.linear_tile(*shape), products_of(shape, "cuda"), dict[Tile | None, float]()
        for tile in dict.fromkeys([known, None, *linear_tiles(shape)]):
            with suppress(TooLarge):
                times[tile] = microseconds(partial(run, tile))
        rows, outputs, inputs, gated = shape
        print(f"{rows} x {inputs} -> {outputs}{', gated' if gated else ''}: now {told(known, times[known])}", end="")
        print("; cuBLAS", f"{times[None]:.1f}", end="")
        for tile in sorted(times, key=lambda tile: times[tile])[:SHOWN]:
            print(";", told(tile, times[tile]), end="")
        print(flush=True)


def told(tile: Tile | None, time: float) -> str:
    """rows x outputs x inputs, warps, stages, splits, ahead"""
    if tile is None:
        return f"cuBLAS {time:.2f}"
    shape = f"{tile.rows}x{tile.outputs}x{tile.inputs}"
    return f"{shape} w{tile.warps} s{tile.stages} k{tile.splits} a{tile.ahead} {time:.2f}"


def codec_tiles(channels: int) -> Iterable[Tile]:
    for rows, outputs, step, stages in product((16, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128), (3, 4, 5)):
        if channels % step == 0:
            yield Tile(rows, outputs, step, 8 if rows * outputs >= 1 << 14 else 4, stages)


def codec_layer(rate: int, channels: int, outputs: int, taps: int, batch: int) -> Callable[[Tile | None], object]:
    weight = torch.randn(taps * channels, outputs, device="cuda", dtype=torch.float16)
    bias = torch.zeros(outputs, device="cuda", dtype=torch.float16)
    streams = Streams(torch.arange(batch, device="cuda"), torch.full((batch,), 9, device="cuda"))

    frames = 1 + -(-(taps - 1) // rate)
    x = torch.randn(batch, frames * rate, channels, device="cuda", dtype=torch.float16)
    layer = PackedLinear(weight, bias, rate) if taps == 1 else PackedConv(weight, bias, rate, taps)

    def run(tile: Tile | None) -> object:
        setattr(tiles, "codec_tile", lambda *shape: tile)  # noqa: B010 - mypy refuses a plain assignment
        return layer(x, streams)

    return run


def tune_codec() -> None:
    table = tiles.codec_tile
    for batch, (rate, channels, outputs, taps) in product(BATCHES, CODEC):
        known, run = table(batch * rate, outputs, channels, taps), codec_layer(rate, channels, outputs, taps, batch)
        times: dict[Tile, float] = {}
        for tile in [known, *codec_tiles(channels)]:
            with suppress(TooLarge):
                times[tile] = do_bench(partial(run, tile)) * 1_000
        best = min(times, key=lambda tile: times[tile])
        shape = f"codec {batch * rate} x {taps} x {channels} -> {outputs}"
        print(f"{shape}: {told(known, times[known])}; fastest {told(best, times[best])}", flush=True)


def main(what: str, *given: str) -> None:
    if what == "compile":
        compile_products(given[0], [(int(rows), *layer) for rows, layer in product(given[1:], LINEAR)])
        return
    setattr(launch, "with_fewer_stages", refuse)  # noqa: B010 - mypy refuses a plain assignment
    if what == "codec":
        tune_codec()
    else:
        tune_products([int(rows) for rows in given])


if __name__ == "__main__":
    main(*sys.argv[1:])
