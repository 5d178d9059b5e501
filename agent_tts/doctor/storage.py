"""Folders that a node writes to: downloaded models, the voice library."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from agent_tts.config.settings import Settings
from agent_tts.doctor.finding import Finding, Verdict
from agent_tts.voices.library import default_folder

GIB = 1 << 30
ROOM_FOR_VOICES = 1 << 28  # bytes; a voice takes less than one MiB
ROOM_FOR_MODELS = 5 * GIB  # the largest one in configs/gpu.yaml, with its codec


def disk(settings: Settings) -> Iterator[Finding]:
    """Whether both are writable and have room."""
    if settings.voices.limit:
        try:
            folder = Path(settings.voices.folder).expanduser() if settings.voices.folder else default_folder()
        except RuntimeError:
            yield Finding("voices", Verdict.BAD, "there is no home folder", "set voices.folder")
        else:
            yield _folder("voices", folder, ROOM_FOR_VOICES, "set voices.folder to a folder of the node's user")
    if settings.engine in ("auto", "qwen3") and settings.qwen3.models:
        yield _folder("models", hub_cache(), ROOM_FOR_MODELS, "set HF_HOME to a folder on a larger disk")


def hub_cache() -> Path:
    """The cache of downloaded models, by the rules of huggingface_hub."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()


def _folder(what: str, folder: Path, room: int, advice: str) -> Finding:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, Verdict.BAD, f"{there} is not writable", advice)
    free = shutil.disk_usage(there).free
    found = f"{folder}, {free / GIB:.1f} GiB free"
    return Finding(what, Verdict.GOOD if free > room else Verdict.NOTE, found, "" if free > room else advice)
