"""Python imports this at its start, where the folder is in PYTHONPATH: each process of the node records itself."""

import os
from pathlib import Path

if folder := os.environ.get("PYTHON_TAIL_OUT"):
    from tests.measure.tail.probe import install

    install(Path(folder))
