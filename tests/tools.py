"""Programs that tests run and that pip does not install."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def needs(program: str, place: Path | None = None) -> pytest.MarkDecorator:
    """Skips a test where a program is missing; not in `make test`, which has all installed first (`.ci/tools`).

    Args:
        place: where it is; None: on the PATH.
    """
    there = shutil.which(program) is not None if place is None else place.exists()
    missing = not there and "TOOLS_ARE_INSTALLED" not in os.environ
    return pytest.mark.skipif(missing, reason=f"needs {program}: make test installs it")
