"""`agent-tts bench`."""

from __future__ import annotations

import typer

bench = typer.Typer(help="Measure a node from outside.", no_args_is_help=True)
