"""Lexicons from files and settings."""

from __future__ import annotations

from pathlib import Path

import yaml

from agent_tts.config.files import FileContents, read
from agent_tts.config.loading import read_yaml
from agent_tts.config.settings import Settings
from agent_tts.errors import SettingsError
from agent_tts.text.entries import Lexicon
from agent_tts.text.pls import MAX_BYTES, read_pls


def read_lexicon(path: Path) -> Lexicon:
    """The lexicon in a file: W3C PLS, or a mapping in YAML or JSON; see `Lexicon.of`.

    Raises SettingsError: it cannot be read, or is neither.
    """
    try:
        with path.open("rb") as file:
            return _lexicon_of(file.read(MAX_BYTES + 1), path.name)
    except OSError as error:
        raise SettingsError(f"{path.name}: {error.strerror}") from error


def _lexicon_of(data: bytes, name: str) -> Lexicon:
    try:
        if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
            return read_pls(data)
        if len(data) > MAX_BYTES:
            raise ValueError(f"a lexicon has at most {MAX_BYTES} bytes")
        found = read_yaml(data)
        if not isinstance(found, dict):
            raise ValueError("neither a PLS document nor a mapping from words to what is said")
        return Lexicon.of(found)
    except yaml.YAMLError as error:
        why = getattr(error, "problem", None) or "unreadable"
        raise SettingsError(f"{name}: neither XML nor YAML: {why}") from None
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error


def node_lexicon(settings: Settings, contents: FileContents | None = None) -> Lexicon | None:
    """The lexicon of all requests to a node, its file as in `contents`; None without one. Raises `SettingsError`."""
    entries = list(Lexicon.of(settings.lexicon).entries)
    if settings.lexicon_file is not None:
        path = settings.lexicon_file
        data = read("lexicon_file", path) if contents is None else contents[path]
        entries[:0] = _lexicon_of(data, Path(path).name).entries
    return Lexicon(entries) if entries else None
