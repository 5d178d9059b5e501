"""Fill the table of loads that a node with many fronts must hold. `python -m tests.measure.many_fronts --help`.

Each step is an `agent-tts bench` command with a time limit of its own, the most important one first. After each step
its figures are in OUT/results.json, its output in OUT/results.txt, its picture in OUT/STEP.png, and the table so far is
printed: what is cut off loses one step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_tts.bench import report
from agent_tts.cli.options import command
from agent_tts.errors import SettingsError

STOP_S = 20.0  # for a command to end after SIGTERM, its node included
FRAMES = 60  # of a request: random weights do not end by themselves
Figures = Mapping[str, Any]  # a run of one command


@dataclass(frozen=True, slots=True)
class Plan:
    """The machine, and how much of the table's load is put on it."""

    model: tuple[str, ...]  # options of the node: --model FOLDER, or --engine tone
    gpus: int
    fronts: str  # a number, or auto
    share: float  # of the callers of the table; less for a try on a small machine
    seconds: float  # measured, of each load
    cores: tuple[str, ...]  # --client-cores and --front-cores

    def callers(self, *counts: int) -> list[int]:
        """Numbers of callers for this machine."""
        return [max(1, round(count * self.gpus * self.share)) for count in counts]

    def node(self, slots: int, **settings: object) -> list[str]:
        """Options of a node that is started, with so many slots in all."""
        devices = {"qwen3.device": ",".join(f"cuda:{gpu}" for gpu in range(self.gpus))} if self.gpus > 1 else {}
        found = {"slots": -(-slots // self.gpus), "fronts": self.fronts, **devices, **settings}
        return [
            *self.model,
            *self.cores,
            *(part for key, value in found.items() for part in ("--set", f"{key}={value}")),
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """One command."""

    arguments: Callable[[Plan], Sequence[object]]  # after `agent-tts bench`
    limit_s: float  # at 30 s for each load
    rows: Callable[[Plan, list[Figures]], Iterator[tuple[str, object, str, str]]]  # load, found, must, aim
    plots: bool = True


# ---------------------------------------------------------------- the steps


def _errors(run: Figures) -> str:
    return f"errors {report.counted(run['errors'])}"


def _callers(plan: Plan) -> Sequence[object]:
    most = plan.callers(1_000)[0]
    load = ("--streams", ",".join(map(str, plan.callers(900, 1_000))), "--ramp", 8, "--words-every-ms", 40)
    return ("streams", *plan.node(round(1.1 * most)), *load, "--seconds", plan.seconds, "--frames", FRAMES)


def _callers_rows(plan: Plan, runs: list[Figures]) -> Iterator[tuple[str, object, str, str]]:
    for run in runs:
        found = f"{run['callers_with_gaps']} with gaps, longest {run['longest_gap_ms']} ms, {_errors(run)}"
        yield f"{run['load']}, a word every 40 ms", found, f"{900 * plan.gpus} without", f"{1_000 * plan.gpus}"


def _busy(*options: object) -> Callable[[Plan], Sequence[object]]:
    def arguments(plan: Plan) -> Sequence[object]:
        (slots,) = plan.callers(256)
        load = ("--saturate", slots, "--warmup", 8, "--duration", plan.seconds, "--frames", FRAMES, *options)
        return ("serve", *plan.node(slots), *load)

    return arguments


def _busy_rows(what: str, must: tuple[str, str], aim: str) -> Callable[[Plan, list[Figures]], Iterator[Any]]:
    def rows(plan: Plan, runs: list[Figures]) -> Iterator[tuple[str, object, str, str]]:
        for run in runs:
            yield f"{run['load']}, {what}: audio s/s", run["audio_s_per_s"], must[plan.gpus > 1], aim

    return rows


def _rates(plan: Plan) -> Sequence[object]:
    rates = [rate * plan.share for rate in (100, 20, 1)]
    load = ("--rate", ",".join(f"{rate:g}" for rate in rates), "--warmup", 5, "--duration", plan.seconds)
    return ("serve", *plan.node(512), *load, "--words-every-ms", 10, "--frames", FRAMES, "--clients", 8)


def _rates_rows(plan: Plan, runs: list[Figures]) -> Iterator[tuple[str, object, str, str]]:
    for run in runs:
        times = " / ".join(str(run["ttfa_ms"][name]) for name in ("p50", "p95", "p99", "p100"))
        first = run is runs[0]
        said = f"{times} ms, {run['callers_with_gaps']} with gaps"
        yield f"{run['load']}: p50/p95/p99/most", said, "20 / 40" if first else "", "15 / 30" if first else ""


def _rtc(plan: Plan) -> Sequence[object]:
    sizes = plan.callers(700, 1_000)
    node = plan.node(round(1.1 * sizes[-1]), **{"limits.max_frames": FRAMES})
    return ("rtc", *node, "--peers", ",".join(map(str, sizes)), "--seconds", plan.seconds)


def _rtc_rows(plan: Plan, runs: list[Figures]) -> Iterator[tuple[str, object, str, str]]:
    for run in runs:
        late = " / ".join(str(ms) for ms in run["lateness_ms"].values())
        found = f"late p50/p99/most {late} ms, {run['lost']} of {run['packets']} lost, {_errors(run)}"
        yield f"{run['peers']} WebRTC callers", found, "700", "1000"


def _fronts(plan: Plan) -> Sequence[object]:
    numbers = [str(count) for count in (1, 2, 4, 8) if count == 1 or count * 3 <= (os.cpu_count() or 1) + 2]
    return ("fronts", "--fronts", ",".join(numbers), "--duration", min(plan.seconds, 15), *plan.cores)


def _fronts_rows(plan: Plan, runs: list[Figures]) -> Iterator[tuple[str, object, str, str]]:
    for run in runs:
        found = f"{run['frames_per_s']} frames/s, {run['us_per_frame'].get('front')} us a frame"
        yield f"{run['fronts']} fronts, tone", found, "linear", ""


def _frame(plan: Plan) -> Sequence[object]:
    return ("frame", *plan.model, "--batches", "128,256")


def _frame_rows(plan: Plan, runs: list[Figures]) -> Iterator[tuple[str, object, str, str]]:
    for run in runs:
        yield f"bench frame, {run['batch']} rows: audio s/s of a GPU", run["audio_s_per_s"], "", ""


STEPS = {
    "callers": Step(_callers, 200, _callers_rows),
    "rates": Step(_rates, 200, _rates_rows),
    "busy": Step(_busy(), 120, _busy_rows("all slots busy", ("1450", "2850"), "95 % of bench frame")),
    "rtc": Step(_rtc, 240, _rtc_rows),
    "words": Step(_busy("--timestamps", "word"), 120, _busy_rows("with word times", ("1300", ""), "1450"), plots=False),
    "frame": Step(_frame, 90, _frame_rows, plots=False),
    "fronts": Step(_fronts, 180, _fronts_rows),
}


# ---------------------------------------------------------------- running them


class Results:
    """Files in a folder, complete after each step."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._documents: dict[str, Any] = {}
        self._rows: list[tuple[str, str, object, str, str]] = []

    def run(self, name: str, step: Step, plan: Plan) -> None:
        """Run a step, and write what came of it."""
        figures, picture = self._out / f".{name}.json", self._out / f"{name}.png"
        plot = ("--plot", picture) if step.plots and find_spec("matplotlib") is not None else ()
        arguments = [str(part) for part in ("bench", *step.arguments(plan), "--json", figures, *plot)]
        limit_s = step.limit_s * max(1.0, plan.seconds / 30)
        begin = time.monotonic()
        self._say(f"\n## {name}: agent-tts {' '.join(arguments)}")
        environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            [sys.executable, "-m", "agent_tts", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        ) as process:
            code = self._ended(process, limit_s)
        self._say(f"{name}: exit code {code} after {time.monotonic() - begin:.0f} of {limit_s:.0f} s")
        if figures.exists():
            document = json.loads(figures.read_text())
            figures.unlink()
            self._documents[name] = document
            for load, found, must, aim in step.rows(plan, document["runs"]):
                self._rows.append((name, load, found, must, aim))
            for run in document["runs"]:
                if run.get("client_limit"):
                    self._rows.append((name, "THE CLIENTS WERE THE LIMIT", run["client_limit"], "", ""))
        else:
            self._rows.append((name, "NO FIGURES", f"exit code {code}", "", ""))
        written = {"steps": self._documents, "table": self._rows}
        (self._out / "results.json").write_text(json.dumps(written, indent=1) + "\n")
        report.table("the table so far", ("step", "load", "found", "must", "aim"), self._rows, width=200)

    def _ended(self, process: subprocess.Popen[str], limit_s: float) -> int:
        """Tell the process's output until it ends; it is stopped at the limit."""
        assert process.stdout is not None
        for how, seconds in ((signal.SIGTERM, limit_s), (signal.SIGKILL, STOP_S)):
            try:
                said, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(how)
            else:
                self._say(said.rstrip())
                return process.returncode
        said, _ = process.communicate()
        self._say(said.rstrip())
        return process.returncode

    def _say(self, text: str) -> None:
        print(text, flush=True)
        with (self._out / "results.txt").open("a") as file:
            file.write(f"{text}\n")


@command
def main(
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")],
    steps: Annotated[str, typer.Option(help="Which, in their order.")] = ",".join(STEPS),
    model: Annotated[Path | None, typer.Option(help="A checkpoint folder, see tests.measure.checkpoint.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="That the node speaks on; callers and slots are for each.")] = 1,
    fronts: Annotated[str, typer.Option(help="Of the node: a number, or auto.")] = "auto",
    share: Annotated[float, typer.Option(min=0.001, max=2, help="Of the table's callers.")] = 1.0,
    seconds: Annotated[float, typer.Option(min=1, max=600, help="Measured, for each load.")] = 30.0,
    client_cores: Annotated[str | None, typer.Option(help="Cores of client processes: 8-15.")] = None,
    front_cores: Annotated[str | None, typer.Option(help="Cores of fronts: 0-3.")] = None,
) -> None:
    """Callers, first audio, throughput, WebRTC and linearity of one node; without --model by the tone engine."""
    wanted = steps.split(",")
    if unknown := [name for name in wanted if name not in STEPS]:
        raise SettingsError(f"--steps {','.join(unknown)}: steps are {', '.join(STEPS)}")
    pinned = (("--client-cores", client_cores), ("--front-cores", front_cores))
    cores = tuple(part for option, value in pinned if value is not None for part in (option, value))
    node = ("--model", str(model)) if model is not None else ("--engine", "tone")
    plan = Plan(node, gpus, fronts, share, seconds, cores)
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out)
    for name in wanted:
        if name == "frame" and model is None:
            continue  # it measures a model
        results.run(name, STEPS[name], plan)


if __name__ == "__main__":
    typer.run(main)
