"""Measures the tiles of `agent_tts.model.kernels.tiles` on this GPU: `python -m tests.gpu.tune_tiles linear ROWS...`.

Prints a line per product of the released models: its shape, the current tile and its time, and the fastest candidates
with theirs; None is cuBLAS. `... e4m3 ROWS...` does so for weights in e4m3, which cuBLAS gets widened, and `... codec`
for the codec. The tables are then edited by hand: they are rules over shapes, not lists of shapes.

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
from agent_tts.model.kernels.linear import Hidden, _by_cublas, linear, linear_before, rms_norm
from agent_tts.model.kernels.tiles import Tile
from agent_tts.model.layers import RMSNorm
from agent_tts.model.quantised import E4M3, Quantised

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Outputs, inputs, gated: the talker of 1.7B, and its predictor, whose sizes are those of the talker of 0.6B.
LINEAR = [
    *((4096, 2048, False), (2048, 2048, False), (6144, 2048, True), (2048, 6144, False)),
    *((4096, 1024, False), (1024, 2048, False), (3072, 1024, True), (1024, 3072, False), (2048, 1024, False)),
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
SHOWN = 5

Shape = tuple[int, int, int, bool, bool]  # rows, outputs, inputs, gated, in e4m3


class TooLarge(Exception):
    """A tile does not fit this GPU."""


def refuse(kernel: object, arguments: object, why: str) -> NoReturn:
    """For `launch.with_fewer_stages`: another tile would be measured than the one that is reported."""
    raise TooLarge(why)


def linear_tiles(shape: Shape) -> Iterable[Tile]:
    """Those whose grid, shared memory and registers fit the processors."""
    rows, outputs, inputs, gated, e4m3 = shape
    few = rows <= tiles.TILE_ROWS
    heights = {max(16, launch.power_of_2(rows)), 64} if few else (64, 128, 256)
    widths = (16, 32, 64, 128) if few else (64, 128, 256)
    steps, ahead = ((64, 128, 256, 512, 1024), (0, 256)) if few else ((64, 128), (0,))
    for height, width, step, threads, splits, early, turned in product(
        heights, widths, steps, (4, 8), (1, 2, 3, 4, 6, 8), ahead, (False, True)
    ):
        wide, span = width * (1 + gated), inputs // splits
        held = step == span  # its weights are read ahead, and no further steps
        stages = min(4, SHARED // (step * (2 * height + wide * (1 if e4m3 else 2))))
        programs = -(-rows // height) * -(-outputs // width) * splits
        if (
            PROCESSORS // 3 <= programs <= 2.2 * PROCESSORS
            and inputs % splits == span % step == 0
            and (stages >= 1 and step >= 256 and not early if held else stages >= 3 and splits % 3)
            and height * wide <= 128 * 32 * threads  # float32 sums in registers
            and (threads == 4 or height * wide >= 128 * 64 or (held and step * wide >= 1 << 15))
            and splits * height * wide <= 1 << 15  # sums that a tile's last program reads
            and not early % step
            and (width >= 16 * threads if turned else height == 64 or width <= 32)  # that the tensor cores take at once
        ):
            yield Tile(height, width, step, threads, stages, splits, early, turned)


def many_rows_tiles(shape: Shape) -> Iterable[Tile]:
    """The same of `kernels.many_rows`."""
    rows, outputs, inputs, gated, _ = shape
    for height, width, splits, step, loaders in product(
        (64, 128, 256), (16, 32, 48, 64, 96, 128, 256), (1, 2, 4), (64, 128), (1, 2)
    ):
        wide, span, threads = width * (1 + gated), inputs // splits, 4 if height == 64 else 8
        programs = -(-rows // height) * (outputs // width) * splits
        memory = (SHARED - 4096) // loaders - 2 * height * width
        stages = min(18, memory // (2 * step * (height + wide)), span // step)
        if (
            PROCESSORS // 3 <= programs <= loaders * PROCESSORS
            and outputs % width == inputs % (splits * step) == 0
            and height <= max(64, rows)
            and (width % 3 or (gated and splits == 1))
            and height * wide <= 32 * threads * (64 if loaders > 1 else 128)  # float32 sums in registers
            and wide <= 256
            and stages >= 3
        ):
            yield Tile(height, width, step, threads, stages, splits, loaders=loaders)


def interleaved_tiles(shape: Shape) -> Iterable[Tile]:
    """The same for interleaved weights in e4m3."""
    rows, outputs, inputs, gated, _ = shape
    least = min(256, max(8, launch.power_of_2(rows)))
    for height, width, splits, threads in product((8, 16, 32, 64, 128, 256), (64, 128), (1, 2, 3, 4, 6), (4, 8)):
        span = inputs // splits
        programs = -(-rows // height) * (outputs // width) * splits
        memory = SHARED - 4096 - 2 * height * width
        stages = min(12, memory // (128 * (2 * height + width * (1 + gated))), span // 128)
        registers = width * (1 + gated) * (height + 128) // (32 * threads)  # sums and widened weights
        if (
            (height == least or (rows > 64 and height in (64, 128)))
            and PROCESSORS // 4 <= programs <= PROCESSORS
            and inputs % (splits * 128) == 0
            and threads * 16 <= width * (1 + gated)
            and registers <= 256
            and stages >= 2
        ):
            yield Tile(height, width, 128, threads, stages, splits, loaders=1)


def vector_tiles(shape: Shape) -> Iterable[Tile]:
    """Of rows that are multiplied one by one."""
    _, outputs, inputs, gated, _ = shape
    for width, threads in product((1, 2, 4, 8, 16, 32), (1, 2, 4, 8)):
        weights = launch.power_of_2(inputs) * width * (1 + gated) // (32 * threads)  # in registers, two in each
        if 8 <= weights <= 256 and outputs // width >= PROCESSORS:
            yield Tile(0, width, launch.power_of_2(inputs), threads)


def candidates(shape: Shape) -> Iterable[Tile]:
    if shape[0] <= tiles.VECTOR_ROWS:
        yield from vector_tiles(shape)
    if shape[0] == 1:
        return
    if shape[4]:
        yield from interleaved_tiles(shape)
        return
    if shape[0] <= tiles.TILE_ROWS and not os.environ.get("MANY"):
        yield from linear_tiles(shape)
    yield from many_rows_tiles(shape)


def table(shape: Shape) -> Tile | None:
    if shape[4]:
        return tiles.interleaved_tile(*shape[:4])
    return tiles.many_rows_tile(*shape[:4]) or tiles.linear_tile(*shape[:4])


def products_of(shape: Shape, device: str) -> Callable[[Tile | None], int]:
    """Launches products one behind the other, and gives their number; None is cuBLAS."""
    rows, outputs, inputs, gated, e4m3 = shape
    empty = partial(torch.empty, device=device, dtype=torch.bfloat16)
    x, height = empty(rows, inputs).normal_(), outputs * (1 + gated)
    weights = empty(-(-CACHED // ((1 if e4m3 else 2) * height * inputs)), height, inputs).normal_(std=inputs**-0.5)
    scale = torch.ones(height, device=device)
    matrices = [Quantised(weight.to(E4M3), scale, is_interleaved=True) if e4m3 else weight for weight in weights]
    norm, following = RMSNorm(inputs, 1e-6).to(x), RMSNorm(outputs, 1e-6).to(x)
    given, residual = Hidden(x, x, torch.ones(32, rows, device=device)), empty(rows, outputs).normal_()
    has_norm = gated or outputs > inputs

    def run(tile: Tile | None) -> int:
        for matrix in matrices:
            if tile is None:
                weight = matrix.dequantised(x.dtype) if isinstance(matrix, Quantised) else matrix
                normed = rms_norm(x, norm) if has_norm else x
                _by_cublas(normed, weight, None, None if has_norm else residual, gated)
            elif has_norm:
                linear(given, matrix, norm=norm, gated=gated, tile=tile)
            else:
                linear_before(x, matrix, Hidden(residual), following, tile=tile)
        return len(matrices)

    return run


def compile_products(name: str, shapes: Iterable[Shape]) -> None:
    """Compiles all candidates, by all cores, in a process that has not used the GPU."""
    rehearsal = Rehearsal(architecture(name))
    with launch.unmade(rehearsal):
        for shape in shapes:
            run = products_of(shape, "meta")
            for tile in [table(shape), *candidates(shape)]:
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


def tune_products(what: str, all_rows: Sequence[str]) -> None:
    name = of_nvidia(torch.cuda.get_device_capability()).name
    subprocess.run([sys.executable, "-m", "tests.gpu.tune_tiles", "compile", name, what, *all_rows], check=True)
    for shape in shapes_of(what, all_rows):
        known, run, times = table(shape), products_of(shape, "cuda"), dict[Tile | None, float]()
        for tile in dict.fromkeys([known, None, *candidates(shape)]):
            with suppress(TooLarge):
                times[tile] = microseconds(partial(run, tile))
        rows, outputs, inputs, gated, _ = shape
        print(f"{rows} x {inputs} -> {outputs}{', gated' if gated else ''}: now {told(known, times[known])}", end="")
        print("; cuBLAS", f"{times[None]:.1f}", end="")
        for tile in sorted(times, key=lambda tile: times[tile])[:SHOWN]:
            print(";", told(tile, times[tile]), end="")
        print(flush=True)


def shapes_of(what: str, all_rows: Sequence[str]) -> list[Shape]:
    return [(int(rows), *layer, what == "e4m3") for rows, layer in product(all_rows, LINEAR)]


def told(tile: Tile | None, time: float) -> str:
    """rows x outputs x inputs, t if turned, warps, stages, splits, ahead, loaders"""
    if tile is None:
        return f"cuBLAS {time:.2f}"
    shape = f"{tile.rows}x{tile.outputs}x{tile.inputs}{'t' if tile.turned else ''}"
    return f"{shape} w{tile.warps} s{tile.stages} k{tile.splits} a{tile.ahead} l{tile.loaders} {time:.2f}"


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
        tiles.codec_tile = lambda *shape: tile  # pyrefly: ignore[bad-assignment]
        return layer(x, streams)

    return run


def tune_codec() -> None:
    choose = tiles.codec_tile
    for batch, (rate, channels, outputs, taps) in product(BATCHES, CODEC):
        known, run = choose(batch * rate, outputs, channels, taps), codec_layer(rate, channels, outputs, taps, batch)
        times: dict[Tile, float] = {}
        for tile in [known, *codec_tiles(channels)]:
            with suppress(TooLarge):
                times[tile] = do_bench(partial(run, tile)) * 1_000
        best = min(times, key=lambda tile: times[tile])
        shape = f"codec {batch * rate} x {taps} x {channels} -> {outputs}"
        print(f"{shape}: {told(known, times[known])}; fastest {told(best, times[best])}", flush=True)


def main(what: str, *given: str) -> None:
    if what == "compile":
        compile_products(given[0], shapes_of(given[1], given[2:]))
        return
    launch.with_fewer_stages = refuse
    if what == "codec":
        tune_codec()
    else:
        tune_products(what, given)


if __name__ == "__main__":
    main(*sys.argv[1:])
