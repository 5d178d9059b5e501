"""The files that settings name, as they were when the settings were taken up: one that breaks later ends nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from operator import attrgetter
from pathlib import Path

from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError

FileContents = Mapping[str, bytes]  # by path, as the settings name it

MAX_BYTES = 4 << 20  # of a file
NAMING = ("lexicon_file", "tls.cert", "tls.key", "c2pa.certificate", "c2pa.key")  # settings that name a file


def contents_of(settings: Settings, of: Collection[str] = ("lexicon_file", "tls", "c2pa")) -> dict[str, bytes]:
    """Those of some sections and settings, as they are now. Raises the errors of `read`."""
    named = {setting: attrgetter(setting)(settings) for setting in NAMING if setting.partition(".")[0] in of}
    return {path: read(setting, path) for setting, path in named.items() if path is not None}


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
