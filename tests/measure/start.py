"""What each stage of a node's start takes, the first time and again: `python -m tests.measure.start CHECKPOINT`.

The first start finds no compiled kernels, the others all, as `agent-tts compile` leaves them; with `--kernels` each
finds those of that folder. Prints the lines of the log that tell of stages, and the seconds until the node says that it
is ready.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import httpx
import typer

from agent_tts.bench.node import WELCOME

POLL_S = 0.05
# In lines that tell of stages.
STAGES = ("opening ", "libraries ", "device ", "kernels compiled", "weights ", "started: ", "ready")


def ready_s(command: list[str], kernels: Path) -> float:
    """Start a node, print its stages, and stop it; seconds until it is ready."""
    began = time.monotonic()
    environment = os.environ | {"TRITON_CACHE_DIR": str(kernels)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if any(stage in line for stage in STAGES):
                    print(f"  {time.monotonic() - began:4.1f} s: {line.strip()}")
                if line.startswith(WELCOME):
                    url = line.removeprefix("agent-tts: ").strip()
                    break
            else:
                raise SystemExit("the node did not start")
            while httpx.get(f"{url}/ready", timeout=None).status_code != 200:
                time.sleep(POLL_S)
            return time.monotonic() - began
        finally:
            process.terminate()
            process.communicate()


def main(
    checkpoint: Path,
    slots: Annotated[int, typer.Option(help="Of the node.")] = 512,
    runs: Annotated[int, typer.Option(help="Starts, one after the other.")] = 3,
    kernels: Annotated[Path | None, typer.Option(help="Compiled kernels; default: an empty folder.")] = None,
    device: Annotated[str, typer.Option(help="As `serve --device`.")] = "auto",
) -> None:
    """Start a node several times."""
    flags = ("--engine", "qwen3", "--model", str(checkpoint), "--slots", str(slots), "--device", device)
    command = [sys.executable, "-m", "agent_tts", "serve", "--port", "0", *flags]
    with tempfile.TemporaryDirectory() as empty:
        for run in range(1, runs + 1):
            if run == 2 and kernels is None and device != "cpu":
                ahead = ("--model", str(checkpoint), "--slots", str(slots), "--folder", empty)
                # Without a GPU it says so: there is nothing to compile.
                subprocess.run([sys.executable, "-m", "agent_tts", "compile", *ahead], check=False)
            print(f"start {run}: ready after {ready_s(command, kernels or Path(empty)):.1f} s", flush=True)


if __name__ == "__main__":
    typer.run(main)
