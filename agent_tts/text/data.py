"""Words that are data, in TOML beside the code that reads them."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def data(name: str, folder: Path = Path(__file__).parent) -> dict[str, Any]:
    """What a file below a folder has, by its name without `.toml`."""
    return tomllib.loads((folder / f"{name}.toml").read_text("utf-8"))


def words(listed: str, comma: str | None = None) -> list[str]:
    """Words with white space between them, or phrases with commas."""
    return listed.split() if comma is None else [" ".join(phrase.split()) for phrase in listed.split(comma)]
