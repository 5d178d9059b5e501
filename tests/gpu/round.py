"""All that only a GPU shows, in one go: `python -m tests.gpu.round OUT [--before TREE] [--only WORDS]`.

The most wanted comes first, each step has a time limit, and a step that fails does not end the round. OUT gets two
files: `round.txt`, what the steps print, and `round.json` with seconds and exit codes; a second call, with other steps
in `--only`, adds to both. The checkpoint lies elsewhere, and is kept for the next call. With `--before`, another
checkout of the project is measured in the same round: frames, first audio.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[2]
CHECKPOINT = "CHECKPOINT"  # in a command: the folder of random weights of the released size
LOAD = "--frames 60 --set slots=512"  # random weights do not end by themselves
STEADY = "--ramp 6 --seconds 10 --frames 60 --set slots=880"


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: str  # behind `python -m`
    limit_s: int
    compared: bool = False  # also run in the tree before


STEPS = (
    Step("checkpoint", f"tests.measure.checkpoint --out {CHECKPOINT} --size 1.7B", 120),
    # What still has to be compiled would be part of each figure.
    Step("compile", f"agent_tts compile --model {CHECKPOINT} --slots 512", 240, compared=True),
    Step("tests", "pytest -q --no-header -n 2 --dist loadfile -m gpu tests/gpu", 420),
    Step("frame", f"agent_tts bench frame --model {CHECKPOINT} --batches 1,8,64,256", 180, compared=True),
    Step("start", f"tests.measure.start {CHECKPOINT} --slots 512 --runs 2", 150),
    Step(
        "serve",
        f"agent_tts bench serve --model {CHECKPOINT} --rate 1,20,100 --duration 30 {LOAD} --clients 4",
        240,
        True,
    ),
    Step("streams", f"agent_tts bench streams --model {CHECKPOINT} --streams 500,800 {STEADY}", 150, True),
    Step("trace", f"agent_tts bench trace --model {CHECKPOINT} --rate 1,20,100 --duration 10 {LOAD}", 120),
    Step("seams", f"tests.measure.seams {CHECKPOINT} --slots 64", 120),
    Step("ends", f"tests.measure.ends {CHECKPOINT} --slots 64", 150),
    Step("fp8", f"agent_tts bench frame --model {CHECKPOINT} --batches 1,64,256 --fp8 nothing,cache,weights", 200),
    Step("adapters", "tests.measure.adapter_cost 1 64", 90),
    Step("cards", "tests.measure.small_cards 8 16 24", 150),
    Step("watermark", "tests.measure.watermark_cost 1 16 64", 90),
    Step("soak", f"tests.measure.soak --model {CHECKPOINT}", 300),
    Step("saturate", f"agent_tts bench serve --model {CHECKPOINT} --saturate 256 --duration 20 --clients 4", 120, True),
)


def run(step: Step, name: str, tree: Path, checkpoint: Path, log: Path) -> tuple[int | None, float]:
    """Exit status (None: it ran past its limit) and seconds of a step in a tree."""
    words = [str(checkpoint) if word == CHECKPOINT else word for word in step.command.split()]
    command = [sys.executable, "-m", *words]
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "220"}
    began = time.monotonic()
    with log.open("a") as out:
        print(f"\n==== {name}: {' '.join(command[1:])}", file=out, flush=True)
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return code, time.monotonic() - began


def main(
    out: Annotated[Path, typer.Argument(help="A folder for the results.")],
    before: Annotated[Path | None, typer.Option(help="Another checkout, measured beside this one.")] = None,
    only: Annotated[str, typer.Option(help="Names of steps, joined by commas.")] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="A folder for the checkpoint; default: one of the system's temporary ones.")
    ] = None,
) -> None:
    """Run all steps; the exit status is 1 if one failed."""
    wanted = set(only.split(",")) if only else {step.name for step in STEPS}
    if unknown := wanted - {step.name for step in STEPS}:
        raise typer.BadParameter(f"no step is named {', '.join(sorted(unknown))}")
    out.mkdir(parents=True, exist_ok=True)
    folder = checkpoint or Path(tempfile.gettempdir()) / "agent-tts-round"
    told = out / "round.json"
    found: dict[str, dict[str, float | int | None]] = json.loads(told.read_text()) if told.exists() else {}
    for step in STEPS:
        if step.name not in wanted and not (step.name == "checkpoint" and not folder.exists()):
            continue
        trees = {"": ROOT} | ({"-before": before.resolve()} if before is not None and step.compared else {})
        for suffix, tree in trees.items():
            name = step.name + suffix
            code, seconds = run(step, name, tree, folder, out / "round.txt")
            found[name] = {"exit": code, "s": round(seconds, 1)}
            told.write_text(json.dumps(found, indent=1))
            typer.echo(f"{name}: {'ran out of time' if code is None else f'exit {code}'} after {seconds:.0f} s")
    raise typer.Exit(any(one["exit"] != 0 for one in found.values()))


if __name__ == "__main__":
    typer.run(main)
