"""`agent-tts convert`: the file of a model for the experimental engine vox."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import Progress

from agent_tts.config.hub import local_folder
from agent_tts.config.settings import Checkpoint
from agent_tts.engine.vox import files
from agent_tts.errors import needing


def convert(model: str, type_: str) -> None:
    """Make it, in the model's folder. Raises SettingsError: it cannot be made, or vox is not installed."""
    checkpoint = Checkpoint.model_validate(model)
    folder = local_folder(checkpoint.source, checkpoint.revision)
    console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(type_, total=None)
        with needing("vox"):
            path, digest = files.convert(folder, type_, lambda *now: shown.update(task, completed=now[0], total=now[1]))
    console.print(f"agent-tts: {path}, sha256 {digest}: for the experimental engine vox, vox.type={type_}")
