"""What the runs of `agent-tts bench` share: options that are lists, the event loop, a progress bar, and files."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from agent_tts.bench import report
from agent_tts.cli.reporting import TERMINATED
from agent_tts.errors import SettingsError

TICK_S = 0.2  # between movements of the bar

T = TypeVar("T")


class Outputs:
    """Files that the figures go to, besides the table; made before the measurement.

    Raises:
        SettingsError: one of them cannot be written.
    """

    def __init__(self, json: Path | None, plot: Path | None) -> None:
        if json is not None:
            report.check_output("--json", json)
        self.json = json
        self.picture = None if plot is None else report.Plot(plot)

    def write(
        self, kind: str, info: dict[str, Any], runs: list[dict[str, Any]], draw: Callable[[report.Plot], None]
    ) -> None:
        """The files that were asked for.

        Raises:
            SettingsError: one of them cannot be written.
        """
        if self.json is not None:
            report.write_json(self.json, report.document(kind, info, runs))
        if self.picture is not None:
            draw(self.picture)
            self.picture.save()


def numbers(option: str, text: str) -> list[float]:
    """Positive numbers, separated by commas.

    Raises:
        SettingsError: they are not.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value > 0 for value in values):
        raise SettingsError(f"{option} {text}: must be positive numbers with commas between them, like 0.5,1,10")
    return values


def counts(option: str, text: str) -> list[int]:
    """Whole numbers from 1, separated by commas.

    Raises:
        SettingsError: they are not.
    """
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise SettingsError(f"{option} {text}: must be whole numbers from 1 with commas between them, like 1,10,20")
    return values


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop that nodes use. SIGTERM cancels it as Ctrl-C does, so that no node is left."""
    from agent_tts.serve.run import event_loop_factory

    try:
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(_until_terminated(main))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _until_terminated(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await main


class Bar:
    """A progress bar on stderr over so many seconds of runs; None is nobody knows how many."""

    def __init__(self, seconds: float | None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        # Refreshed by hand, so it has no thread.
        console = Console(stderr=True)
        self._progress = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
        )
        self._task = self._progress.add_task("", total=seconds)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    async def during(self, name: str, measuring: Coroutine[Any, Any, T]) -> T:
        """Await a run while the bar moves. Cancelling it cancels the run."""
        self._progress.update(self._task, description=name)
        mover = asyncio.create_task(self._move(), name="progress bar")
        try:
            return await measuring
        finally:
            mover.cancel()
            await asyncio.gather(mover, return_exceptions=True)

    async def _move(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._progress.update(self._task, advance=TICK_S)
            self._progress.refresh()
