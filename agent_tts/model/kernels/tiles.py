"""How matrix products are cut into tiles: the fastest that were measured on an H200.

`python -m tests.gpu.tune_tiles` measures them again and prints the tables. A tile is chosen by shape alone, so that a
request sounds the same on every GPU; where one has too little shared memory, `launch` takes stages off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_tts.model.kernels.launch import power_of_2

VECTOR_ROWS = 2  # a product of at most so many rows multiplies them one by one
TILE_ROWS = 64  # at most so many by the tensor cores of our kernel; more by cuBLAS
FEW_ROWS, MANY_ROWS = 16, 256  # on Hopper more than the first, and at most the second, by `kernels.many_rows`

BLOCKS = 264  # that an H200 runs at once: two on each of its multiprocessors

# A sum of so many inputs takes longer than its splits and their own sum.
SPLIT_INPUTS = 2048

# A unit of fewer steps is faster in two kernels; a tile of more channels does not fit the registers.
UNIT_STEPS, UNIT_CHANNELS = 8192, 128


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program of a product [rows, inputs] x [inputs, outputs] computes, and how."""

    rows: int  # 0: one by one
    outputs: int
    inputs: int  # of one step of the sum; weights of a sum of one step are read before the previous kernel has ended
    warps: int = 4
    stages: int = 4
    splits: int = 1  # programs that share the inputs
    ahead: int = 0  # inputs whose weights the second-level cache reads before the previous kernel has ended
    turned: bool = False  # transposed: of at least 64 outputs
    loaders: int = 0  # warps that load for the others of their program, or group; 0: every thread loads
    groups: int = 1  # of warps, each with its own tiles
    held: bool = False  # its weights wait in shared memory: `kernels.few_rows`
    early: bool = False  # the next kernel may start before this one has waited

    def count(self, rows: int, outputs: int) -> int:
        """Of the tiles of a product."""
        return -(-rows // self.rows) * -(-outputs // self.outputs)


def linear_tile(rows: int, outputs: int, inputs: int, gated: bool) -> Tile | None:
    """Of a layer of the talker or the predictor. None is cuBLAS."""
    wide = gated or outputs >= 4096
    if rows == 1 or (rows <= VECTOR_ROWS and (inputs <= 1024 or not wide)):
        if gated:
            return Tile(0, 2, power_of_2(inputs), 4) if inputs > 1024 else Tile(0, 4, power_of_2(inputs), 2)
        return Tile(0, 2 if inputs > 2048 else 4 if inputs > 1024 else 8, power_of_2(inputs), 8)
    if rows > TILE_ROWS or inputs % 1024:
        return None
    if wide and rows > 16:
        return Tile(64, 64 if gated and outputs > 4096 else 32, 128 if gated else 256, ahead=256)
    if wide:
        return Tile(16, 32, 512) if inputs > 1024 and not gated else Tile(16, 32, 128, ahead=256)
    if rows > 32:
        return Tile(64, 32, 256, splits=4 if outputs <= 1024 else 2, ahead=256)
    if rows > 16:
        return Tile(32, 32, 128, splits=4, ahead=256)
    splits = 6 if inputs == 3072 else 4
    return Tile(16, 32, 128 if inputs > 3072 else inputs // splits, splits=splits)


def is_early(rows: int) -> bool:
    """Whether, on Hopper, what follows kernels of the predictor starts before these have waited.

    Two of its products then have room side by side, if neither is split.
    """
    return 32 < rows <= TILE_ROWS


def few_rows_tile(outputs: int, inputs: int, gated: bool) -> Tile | None:
    """The same of one row or two on Hopper, by `kernels.few_rows`. None is one of the others."""
    warps = 4 if inputs > 1024 else 1 if gated else 2
    wide = 16 if outputs >= 4096 and inputs > 1024 and not gated else 4
    return None if inputs % (256 * warps) or outputs % wide else Tile(0, wide, 256 * warps, warps, held=True)


def many_rows_tile(rows: int, outputs: int, inputs: int, gated: bool) -> Tile | None:
    """The same on Hopper, by `kernels.many_rows`. None is one of the others."""
    whole = outputs % (3072 if gated else 128) == 0
    if not (FEW_ROWS < rows <= MANY_ROWS and whole and inputs % 1024 == 0):
        return None
    if rows <= 32 and not gated and inputs > 1024 and max(outputs, inputs) >= 4096:
        return None
    few, some = rows <= TILE_ROWS, rows <= MANY_ROWS // 2
    early = is_early(rows) and min(outputs, inputs) <= 1024  # the talker's would take memory from its attention
    if gated and outputs > 4096:
        wanted = [Tile(64, 48, 128, stages=5) if few else Tile(128, 48 if some else 96, 64, 8, stages=7 if some else 5)]
    elif gated:
        wanted = [Tile(64, 32, 128, stages=6) if few else Tile(128, 32 if some else 64, 64, 8, stages=8 if some else 6)]
    elif inputs > 4096 and not some:
        return None  # cuBLAS is faster, whose processors share in pairs what they read
    elif some:
        wanted = [Tile(64, 32, 128, stages=9), Tile(64, 64, 128, stages=6), Tile(64, 128, 64, stages=8)]
        if few and inputs > outputs and not early:
            wanted.insert(0, replace(wanted[0], splits=2))
        elif inputs <= 1024 and (outputs >= 4096 or not few):
            del wanted[0]
    else:
        wanted = [Tile(64, 64, 128, stages=6), Tile(128, 64, 64, 8, stages=8), Tile(128, 128, 64, 8, stages=6)]
    # Tiles that run one after the other on a processor would double the time.
    fitting = [tile for tile in wanted if tile.count(rows, outputs) * tile.splits <= BLOCKS // 2]
    if not fitting:
        return None
    tile = fitting[0]
    return replace(tile, stages=min(tile.stages, inputs // tile.splits // tile.inputs), loaders=1, early=early)


def e4m3_tile(rows: int, outputs: int, inputs: int, gated: bool) -> Tile | None:
    """As `linear_tile`, of weights in e4m3. None is cuBLAS on weights widened to 16 bits."""
    if rows > TILE_ROWS:
        return None
    if rows <= 32 and (known := linear_tile(rows, outputs, inputs, gated)):
        return known
    step = min(128, whole := inputs & -inputs)
    splits = power_of_2(max(1, BLOCKS // -(-outputs // 64)) + 1) // 2  # at most so many fit
    return Tile(64, 64, step, splits=min(8, splits, whole // step), turned=True)


def interleaved_tile(rows: int, outputs: int, inputs: int, gated: bool) -> Tile | None:
    """Of interleaved weights in e4m3, which are read by Hopper alone. None is cuBLAS on weights widened to 16 bits."""
    known = linear_tile(rows, outputs, inputs, gated) if rows <= VECTOR_ROWS else None
    if known is not None and known.rows == 0:
        return known
    if rows > MANY_ROWS or inputs % 1024 or outputs % 128:
        return None
    if rows <= TILE_ROWS:
        tile = Tile(max(8, power_of_2(rows)), 64, 128, 8 if gated else 4, stages=6 if gated else 9)
        if not gated:
            few = 3 if inputs % 3 == 0 and inputs > 4096 else 2 if outputs <= 2048 else 1
            tile = replace(tile, splits=4 if outputs <= 1024 else few)
    elif gated:
        tile = Tile(128, 64, 128, 8, stages=4) if outputs <= 4096 or rows <= 128 else Tile(256, 64, 128, 8, stages=2)
    elif outputs >= 4096 or inputs > 4096:
        tile = Tile(128, 64, 128, stages=5, splits=2 if inputs > 4096 else 1)
    else:
        tile = Tile(64, 64, 128, stages=8, splits=2 if inputs > 2048 else 1)
    return replace(tile, stages=min(tile.stages, inputs // tile.splits // 128), loaders=1)


def codec_tile(
    rows: int, outputs: int, channels: int, taps: int = 1, gated: bool = False, warpgroups: bool = False
) -> Tile:
    """Of a convolution or linear layer of the codec, whose inputs are taps of `channels`.

    With Hopper's `warpgroups` there is memory for a tile with all weights of its outputs.
    """
    area = rows * outputs
    if taps == rows == 1 and channels in (512, 1024):
        return Tile(1, 16, channels, 8, 1)  # all weights are read ahead
    if warpgroups and taps == 1 and 8 < rows <= 128:
        if channels == 512 and (outputs >= 2048 or (gated and rows < 128)):
            return Tile(16, 32, channels, 4, 1) if gated else Tile(32, 64, channels, 4, 1)  # likewise
        if (outputs, channels) == (512, 1024) and rows > 16:
            return Tile(64, 16, 128, 4, 6)
    if gated and 1 << 16 <= area < 1 << 17:
        return Tile(64, 32, 128, 4, 3)
    if taps * channels > 6144 and 1 << 16 <= area < 1 << 19:
        tile = Tile(64, 64, 64, 4, 5)
    elif area < 1 << 17:
        tile = Tile(16, 32, 128, 4, 5)
    elif area < 1 << 19 and not (outputs >= 2048 and channels <= 512):  # wide and shallow
        tile = Tile(64, 32, 128, 4, 4)
    elif area < 1 << 20:
        tile = Tile(64, 64, 64, 4, 5)
    elif area < 1 << 21:
        tile = Tile(64, 256, 64, 8, 4)
    else:
        tile = Tile(128, 128 if outputs % 128 == 0 else 64, 64, 4, 3)
    # A step of the sum has channels of one tap alone.
    tile = replace(tile, outputs=min(tile.outputs, power_of_2(outputs)), inputs=min(tile.inputs, channels & -channels))
    if area < (1 << 19 if taps > 1 else 1 << 17) and taps * channels >= SPLIT_INPUTS:
        tile = replace(tile, splits=max(1, min(4, BLOCKS // tile.count(rows, outputs))))
    return tile


def unit_tile(rows: int, rate: int, channels: int, *, warpgroups: bool) -> Tile | None:
    """Of both convolutions of a residual unit in one kernel: all channels. None where two kernels are faster.

    With loaders: of `kernels.many_steps`, for Hopper's `warpgroups`; a tile is within a frame, of `rate` steps.
    """
    if rows < UNIT_STEPS:
        return None
    if warpgroups and channels == 192 and rate % 128 == 0:
        return Tile(128, channels, 64, 8, stages=4, loaders=4)
    if warpgroups and channels == 96 and rate % 64 == 0:
        return Tile(64, channels, channels, 4, stages=2, loaders=4, groups=2)
    if channels > UNIT_CHANNELS:
        return None
    return Tile(64, power_of_2(channels), min(64, channels & -channels), 4, 4)
