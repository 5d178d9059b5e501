"""`make attack`: every attack against a node beside a polite caller, and a table of what came of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from agent_tts.bench.report import check_output, table, write_json
from tests.attack.harness import MAX_GAP_MS, MAX_P99_MS, Attack, Verdict, load, run_group

COLUMNS = (
    "attack",
    "polite p50 ms",
    "p99 ms",
    "max ms",
    "gap ms",
    "connect ms",
    "loop ms",
    "MiB before",
    "after",
    "verdict",
    "",
)
WIDTH = 180  # characters of the table


def main(
    only: Annotated[str, typer.Argument(help="part of the names or of the modules of the attacks to run")] = "",
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE of the nodes' settings")] = None,
    short: Annotated[bool, typer.Option(help="the short form that the tests run")] = False,
    json: Annotated[Path | None, typer.Option(help="a file for the figures")] = None,
    log: Annotated[bool, typer.Option(help="print the node's log lines of each attack")] = False,
) -> None:
    """Attack a node beside a polite caller. Exits with 1 if a promise does not hold."""
    if json is not None:
        check_output("--json", json)
    pairs = (change.partition("=") for change in changes or ())
    settings: dict[str, object] = {key.replace(".", "__"): value for key, _, value in pairs}
    verdicts = asyncio.run(_run(load(only), short, settings))
    table(
        f"Attacks: the polite caller's p99 stays below {MAX_P99_MS:g} ms, its gaps at {MAX_GAP_MS:g} ms",
        COLUMNS,
        [_row(verdict) for verdict in verdicts],
        WIDTH,
    )
    for verdict in verdicts:
        for broken in verdict.broken:
            print(f"{verdict.name}: {broken}")
        if verdict.log and (log or verdict.broken):
            print(verdict.log, file=sys.stderr)
    if json is not None:
        write_json(
            json, {one.name: {"polite": one.polite, "loop_ms": one.loop_ms, "broken": one.broken} for one in verdicts}
        )
    raise typer.Exit(1 if any(verdict.broken for verdict in verdicts) else 0)


async def _run(groups: list[list[Attack]], short: bool, settings: dict[str, object]) -> list[Verdict]:
    verdicts = []
    columns = (SpinnerColumn(), TextColumn("{task.completed}/{task.total} {task.description}"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=sum(map(len, groups)))
        for group in groups:
            async for verdict in run_group(
                group, short=short, settings=settings, begin=lambda one: progress.update(task, description=one.name)
            ):
                verdicts.append(verdict)
                progress.advance(task)
    return verdicts


def _row(verdict: Verdict) -> tuple[object, ...]:
    names = ("p50_ms", "p99_ms", "max_ms", "gap_ms", "connect_ms")
    figures = [None if (found := verdict.polite.get(name)) is None else f"{found:.1f}" for name in names]
    figures.append(None if verdict.loop_ms is None else f"{verdict.loop_ms:.0f}")
    memory = [f"{mib:.0f}" for mib in verdict.rss_mib]
    return verdict.name, *figures, *memory, "BREAKS" if verdict.broken else "holds", verdict.did


if __name__ == "__main__":
    typer.run(main)
