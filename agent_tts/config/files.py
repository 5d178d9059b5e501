"""The files that settings name, as they were when the settings were taken up: one that breaks later ends nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError

FileContents = Mapping[str, bytes]  # by path, as the settings name it

MAX_BYTES = 4 << 20  # of a file


def contents_of(settings: Settings, of: Collection[str] = ("lexicon_file", "tls", "c2pa")) -> dict[str, bytes]:
    """Those of some sections and settings, as they are now. Raises the errors of `read`."""
    named = {
        "lexicon_file": settings.lexicon_file,
        "tls.cert": settings.tls.cert,
        "tls.key": settings.tls.key,
        "c2pa.certificate": settings.c2pa.certificate,
        "c2pa.key": settings.c2pa.key,
    }
    wanted = {setting: path for setting, path in named.items() if setting.partition(".")[0] in of and path is not None}
    return {path: read(setting, path) for setting, path in wanted.items()}


def read(setting: str, path: str) -> bytes:
    """A regular file, which no writer keeps waiting; a byte more than `MAX_BYTES` of one that is too long.

    Raises `SettingsError`.
    """
    try:
        with open(os.open(Path(path).expanduser(), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsError(f"{setting}: {path} is no regular file")
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{setting}: {path} cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise SettingsError(f"{setting}: {path}: there is no such home folder") from None
