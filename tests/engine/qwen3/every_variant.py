"""Compiles the kernels of the released sizes for all GPUs, without one: `python -m ... [--all] [ARCHITECTURE...]`.

`compiled.json` holds a digest for each kernel and GPU: of the kernel's source, its variants and triton's version. The
same input compiles to the same output, so only kernels whose digest differs are compiled, in all their variants. The
talker of 0.6B has the size of the predictor of 1.7B, so that its variants are among those of 1.7B.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import triton
import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from agent_tts.bench.checkpoint import SIZES, write_configuration
from agent_tts.engine.qwen3.compiling import rehearse
from agent_tts.engine.qwen3.graphs import BUCKETS
from agent_tts.model.kernels.ahead import Launch, compile_all
from agent_tts.model.kernels.architectures import ARCHITECTURES, OLDEST_E4M3, TENSOR_MEMORY, Architecture
from agent_tts.model.kernels.launch import with_fewer_stages
from tests.engine.qwen3.rehearsed import STEPS

COMPILED = Path(__file__).parent / "compiled.json"

# By architecture, and in it by kernel.
Digests = dict[str, dict[str, str]]


def kind_of(known: Architecture) -> str:
    """The architecture with the same launches; in nothing else but 8 bits do architectures differ."""
    return "sm_90" if known.has_warpgroups else "sm_100" if known.overlaps else "sm_80"


@cache
def launches_of(like: str, *, e4m3: bool) -> list[Launch]:
    """Of steps of all sizes on an architecture; see `kind_of`."""
    with tempfile.TemporaryDirectory() as folder:
        write_configuration(Path(folder), SIZES["1.7B"], "custom_voice")
        paged = replace(STEPS, folder=folder, max_model_len=2_048, sizes=BUCKETS, architecture=like)
        steps = [replace(paged, paged=False, adapters=(8, 32)), paged]
        if e4m3:
            steps.append(replace(paged, fp8_weights=True, fp8_cache=True))
        return rehearse(steps)


def kernels_of(known: Architecture) -> dict[str, list[Launch]]:
    """Its launches, by kernel."""
    kernels = defaultdict(list)
    for launch in launches_of(kind_of(known), e4m3=(known.capability or 0) >= OLDEST_E4M3):
        kernels[f"{launch.kernel.fn.__module__.rpartition('.')[2]}.{launch.kernel.fn.__name__}"].append(launch)
    return kernels


def digest(launches: Sequence[Launch], known: Architecture) -> str:
    """Of the variants of a kernel on an architecture, of all that its source uses, and of what has them fit."""
    fitting = inspect.getsource(Launch), inspect.getsource(with_fewer_stages), TENSOR_MEMORY
    variants = sorted(str(sorted(launch.arguments.items())) for launch in launches)
    compiled = triton.__version__, known, fitting, launches[0].kernel.cache_key, variants
    return sha256(repr(compiled).encode()).hexdigest()[:16]


def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ARCHITECTURE]...", help="all, if none is named")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="also what has compiled before")] = False,
    record: Annotated[bool, typer.Option(help="write to compiled.json what has compiled")] = True,
) -> None:
    """Compile what compiled.json does not hold, by all cores. Exits with 1 if a variant cannot be compiled."""
    if unknown := {*(names or ())} - ARCHITECTURES.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: not among {', '.join(ARCHITECTURES)}")
    compiled: Digests = json.loads(COMPILED.read_text()) if COMPILED.exists() else {}
    failed = 0
    for name in names or ARCHITECTURES:
        architecture = ARCHITECTURES[name]
        kernels = kernels_of(architecture)
        found = {kernel: digest(launches, architecture) for kernel, launches in sorted(kernels.items())}
        before = {} if everything else compiled.get(name, {})
        new = [launch for kernel in kernels if found[kernel] != before.get(kernel) for launch in kernels[kernel]]
        console = Console(stderr=True)
        # Without a thread, because the block forks.
        with Progress(console=console, auto_refresh=False, disable=not console.is_terminal) as shown:
            show = partial(_show, shown, shown.add_task(name))
            not_compiled = compile_all(new, architecture, len(os.sched_getaffinity(0)), show) if new else 0
        print(f"{name}: {sum(map(len, kernels.values()))} variants, {len(new)} new, {not_compiled} failed", flush=True)
        failed += not_compiled
        if record and not not_compiled:
            compiled[name] = found
            COMPILED.write_text(json.dumps(compiled, indent=1) + "\n")
    raise typer.Exit(1 if failed else 0)


def _show(shown: Progress, task: TaskID, done: int, total: int) -> None:
    shown.update(task, completed=done, total=total, refresh=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache_folder:
        os.environ["TRITON_CACHE_DIR"] = cache_folder
        typer.run(main)
