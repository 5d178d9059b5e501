"""A bar of what is done, on a terminal's stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress(name: str, total: float | None = None, *columns: ProgressColumn) -> Iterator[Callable[..., None]]:
    """Show that something is under way, and for how long.

    It yields what counts one more as done, or `advance` more; with `completed` and `total` it sets these.
    """
    console = Console(stderr=True)
    every = (TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn())
    with Progress(*every, console=console, transient=True, disable=not console.is_terminal) as shown:
        yield partial(shown.update, shown.add_task(name, total=total), advance=1)
