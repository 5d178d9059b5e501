"""Processes in which modules are not installed."""

from __future__ import annotations

import os
from pathlib import Path


def without(folder: Path, *modules: str, path: str | None = None) -> dict[str, str]:
    """Variables for Python processes, and those that they start, which do not find these modules.

    Args:
        folder: where a file for them may be.
        path: PYTHONPATH besides; default: this process's.
    """
    lines = [f"sys.modules[{module!r}] = None" for module in modules]
    (folder / "sitecustomize.py").write_text("\n".join(("import sys", *lines)))
    return {"PYTHONPATH": os.pathsep.join((str(folder), path or os.environ.get("PYTHONPATH", "")))}


NATURAL = ("hibari", "onnxruntime")  # what the extra `voice` installs
