"""Write a synthetic Qwen3-TTS checkpoint. `python -m tests.measure.checkpoint --help`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from agent_tts.bench.checkpoint import write
from agent_tts.cli.options import command
from agent_tts.model.config import ModelType
from tests.model import crafted


@command
def main(
    out: Annotated[Path, typer.Option(help="A new or empty folder.")],
    size: Annotated[str, typer.Option(help="tiny, tiny-0.6B, 0.6B or 1.7B.")] = "tiny",
    model_type: Annotated[str, typer.Option("--type", help="custom_voice, voice_design or base.")] = "custom_voice",
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    *,
    ending: Annotated[bool, typer.Option("--ending", help="Draws the end of speech soon after its text.")] = False,
) -> None:
    """Write a Qwen3-TTS checkpoint with random weights, in the released layout and sizes."""
    write(out, size=size, model_type=cast("ModelType", model_type), seed=seed)  # the engine's own check
    if ending:
        crafted.ending(out)
    typer.echo(f"{out}: a {size} {model_type} checkpoint, random weights, seed {seed}", err=True)


if __name__ == "__main__":
    typer.run(main)
