"""Compiles the kernels of the released sizes without a GPU: `python -m ... [ARCHITECTURE...]`.

All variants, from steps of all sizes, by all cores; with `--largest` those with the largest tile of each kernel, by one
core. Prints a line of JSON for each architecture: {"sm_90": [compiled, of how many]}; errors are on stderr. The talker
of 0.6B has the size of the predictor of 1.7B, so that its variants are among those of 1.7B.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

from agent_tts.bench.checkpoint_config import SIZES, write_configuration
from agent_tts.engine.qwen3.compiling import Steps, rehearse
from agent_tts.engine.qwen3.graphs import BUCKETS
from agent_tts.model.kernels.ahead import Launch, Pointer, compile_all
from agent_tts.model.kernels.architectures import ARCHITECTURES, OLDEST_E4M3, Architecture

LARGEST_OF = (1, 256)  # sizes of batches


def kind_of(known: Architecture) -> str:
    """The architecture with the same launches; in nothing else but 8 bits do architectures differ."""
    return "sm_90" if known.has_warpgroups else "sm_100" if known.overlaps else "sm_80"


@cache
def launches_of(sizes: tuple[int, ...], like: str, *, e4m3: bool) -> list[Launch]:
    """Of an architecture; see `kind_of`."""
    with tempfile.TemporaryDirectory() as folder:
        write_configuration(Path(folder), SIZES["1.7B"], "custom_voice")
        steps = Steps(
            folder, "bfloat16", "float16", 2_048, paged=False, sizes=sizes, mixed=True, watermark=True,
            adapters=(8, 32), fp8_weights=False, fp8_cache=False, architecture=like,
        )  # fmt: skip
        others = [replace(steps, paged=True, adapters=(0, 0))]
        if e4m3:
            others.append(replace(others[0], fp8_weights=True, fp8_cache=True))
        return rehearse([steps, *others])


def largest(launches: Sequence[Launch]) -> list[Launch]:
    """The launches with the largest tile of each kernel: gated or not, in e4m3, with groups, in splits."""

    def tile(launch: Launch) -> int:
        sides = ("BM", "BN", "BK", "BLOCK_M", "BLOCK_N", "BLOCK_K", "BLOCK")
        area: int = prod(launch.arguments.get(side, 1) for side in sides)
        return area * (2 if launch.arguments.get("GATED") else 1)

    def kind(launch: Launch) -> Hashable:
        given = launch.arguments
        eight = any(isinstance(value, Pointer) and value.dtype.itemsize == 1 for value in given.values())
        how = "e4m3" if eight else given.get("GATED"), given.get("GROUPS"), given.get("SPLITS", 1) > 1
        return launch.kernel, how

    return list({kind(launch): launch for launch in sorted(launches, key=tile)}.values())


def main(names: Sequence[str], *, only_largest: bool) -> None:
    workers = 1 if only_largest else len(os.sched_getaffinity(0))
    for name in names:
        known = ARCHITECTURES[name]
        e4m3 = (known.capability or 0) >= OLDEST_E4M3
        launches = launches_of(LARGEST_OF if only_largest else BUCKETS, kind_of(known), e4m3=e4m3)
        if only_largest:
            launches = largest(launches)
        failed = compile_all(launches, known, workers, lambda done, total: None)
        print(json.dumps({name: [len(launches) - failed, len(launches)]}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache_folder:
        os.environ["TRITON_CACHE_DIR"] = cache_folder
        options = {"--largest"} & {*sys.argv}
        main([name for name in sys.argv[1:] if name not in options] or [*ARCHITECTURES], only_largest=bool(options))
