"""`agent-tts convert`: the file of a model for the experimental engine vox."""

from __future__ import annotations

import sys

from agent_tts.cli.progress import progress
from agent_tts.config.hub import local_folder
from agent_tts.config.settings import Checkpoint
from agent_tts.engine.vox import files
from agent_tts.errors import needing


def convert(model: str, type_: str) -> None:
    """Make it, in the model's folder. Raises SettingsError: it cannot be made, or vox is not installed."""
    checkpoint = Checkpoint.model_validate(model)
    folder = local_folder(checkpoint.source, checkpoint.revision)
    with progress(type_) as show, needing("vox"):
        path, digest = files.convert(folder, type_, lambda *now: show(completed=now[0], total=now[1]))
    print(f"agent-tts: {path}, sha256 {digest}: for the experimental engine vox, vox.type={type_}", file=sys.stderr)
