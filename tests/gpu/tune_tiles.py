"""Measures the tiles of `agent_tts.model.kernels.tiles` on this GPU: `python -m tests.gpu.tune_tiles`.

Prints a line per product of the released models: its shape, the current tile and its time, the fastest candidate
and its time. The tables are then edited by hand: they are rules over shapes, not lists of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import NoReturn

import torch
from triton.testing import do_bench

from agent_tts.model.codec_fast import PackedConv, PackedLinear, Streams
from agent_tts.model.kernels import launch, tiles
from agent_tts.model.kernels.linear import linear
from agent_tts.model.kernels.tiles import Tile

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Outputs, inputs, gated: the talkers of 1.7B and 0.6B, and the predictor.
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


class TooLarge(Exception):
    """A tile does not fit this GPU."""


def refuse(kernel: object, arguments: object, why: str) -> NoReturn:
    """For `launch.with_fewer_stages`: another tile would be measured than the one that is reported."""
    raise TooLarge(why)


def linear_tiles(inputs: int) -> Iterable[Tile]:
    for rows, outputs, step, stages, splits in product((16, 32, 64), (16, 32, 64), (64, 128, 256), (3, 4), (1, 2, 4)):
        if inputs % (step * splits) == 0:
            yield Tile(rows, outputs, step, stages=stages, splits=splits)


def codec_tiles(channels: int) -> Iterable[Tile]:
    for rows, outputs, step, stages in product((16, 64, 128, 256), (32, 64, 128, 256), (32, 64, 128), (3, 4, 5)):
        if channels % step == 0:
            yield Tile(rows, outputs, step, 8 if rows * outputs >= 1 << 14 else 4, stages)


def linear_layer(batch: int, outputs: int, inputs: int, gated: bool) -> Callable[[Tile | None], object]:
    x = torch.randn(batch, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs * (1 + gated), inputs, device="cuda", dtype=torch.bfloat16)
    return lambda tile: linear(x, weight, gated=gated, tile=tile)


def report(shape: str, known: Tile | None, candidates: Iterable[Tile], run: Callable[[Tile | None], object]) -> None:
    times: dict[Tile | None, float] = {}
    for tile in [known, *candidates]:
        try:
            times[tile] = do_bench(partial(run, tile)) * 1_000
        except TooLarge:
            continue
    best = min(times, key=lambda tile: times[tile])
    print(f"{shape}: {known} {times[known]:.1f} us; fastest {best} {times[best]:.1f} us", flush=True)


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


def main() -> None:
    setattr(launch, "with_fewer_stages", refuse)  # noqa: B010 - mypy refuses a plain assignment
    table = tiles.codec_tile
    for batch, (outputs, inputs, gated) in product(BATCHES, LINEAR):
        known = tiles.linear_tile(batch, outputs, inputs, gated)
        shape = f"linear {batch} x {inputs} -> {outputs}{', gated' if gated else ''}"
        report(shape, known, linear_tiles(inputs), linear_layer(batch, outputs, inputs, gated))
    for batch, (rate, channels, outputs, taps) in product(BATCHES, CODEC):
        known = table(batch * rate, outputs, channels)
        layer = codec_layer(rate, channels, outputs, taps, batch)
        report(f"codec {batch * rate} x {taps} x {channels} -> {outputs}", known, codec_tiles(channels), layer)


if __name__ == "__main__":
    main()
