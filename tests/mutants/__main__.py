"""`make mutants`: changes the code of modules that hold rules, and tells which changes their own tests do not notice.

It fails if the tests of a module notice fewer than nine of ten.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.modules import MODULES

LEAST = 0.9  # share of the mutants of a module that its tests notice


@dataclass
class Outcome:
    """How many mutants of a module its tests noticed, did not notice, and cannot notice."""

    killed: int = 0
    survived: int = 0
    equivalent: int = 0
    took_s: float = 0.0

    @property
    def share(self) -> float:
        return self.killed / max(1, self.killed + self.survived)

    @property
    def is_good(self) -> bool:
        return self.share >= LEAST


def run(name: str, progress: Progress, jobs: int, every: int, like: str) -> Outcome:
    """Run the tests of a module on its mutants, and say which survive."""
    outcome, began = Outcome(), time.monotonic()
    task = progress.add_task(name, total=None)
    known = MODULES[name].reasons

    def say(title: str, what: str) -> None:
        progress.console.print(f"{name}: {title}: {what}", markup=False, highlight=False)

    reader, writer = os.pipe()
    command = [sys.executable, "-m", "tests.mutants.forks", name, str(writer), str(jobs), str(every), like]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, pass_fds=[writer], stdout=said, stderr=subprocess.STDOUT)
        os.close(writer)
        with open(reader) as results:
            for result in map(json.loads, results):
                match result:
                    case {"failed": failure}:
                        say("a test fails on right code", failure)
                    case {"mutants": count}:
                        progress.update(task, total=count)
                    case {"survived": [change, right]}:
                        progress.advance(task)
                        if known.pop(change, None):
                            outcome.equivalent += 1
                        else:
                            outcome.survived += 1
                            say("survived", f"{change}  # right: {right}")
                    case {"killed": killed}:
                        progress.advance(task)
                        outcome.killed += killed
        if process.wait():
            said.seek(0)
            say("the tests could not run", said.read().decode(errors="replace"))
    if every == 1 and not like:
        for change in known:
            say("listed as equivalent, but noticed or gone", change)
    outcome.took_s = time.monotonic() - began
    return outcome


def main(
    modules: Annotated[
        list[str] | None, typer.Argument(help="Paths below agent_tts without `.py`. Default: all.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Mutants at once.")] = os.cpu_count() or 1,
    every: Annotated[int, typer.Option(help="Take every n-th mutant alone.")] = 1,
    like: Annotated[str, typer.Option(help="Take mutants of functions with this in their names alone.")] = "",
) -> None:
    """Change the code of modules that hold rules, and tell which changes their own tests do not notice."""
    console = Console(soft_wrap=True)
    table = Table("module", "mutants", "killed", "survived", "share", "equivalent", "s")
    outcomes: list[Outcome] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        for name in modules or MODULES:
            outcomes.append(outcome := run(name, progress, jobs, every, like))
            counts = outcome.killed + outcome.survived, outcome.killed, outcome.survived
            share = f"{outcome.share:.1%}"
            table.add_row(name, *map(str, counts), share, str(outcome.equivalent), f"{outcome.took_s:.0f}")
    console.print(table)
    if not all(outcome.is_good for outcome in outcomes):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
