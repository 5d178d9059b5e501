"""Checkpoints shared by the tests of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model import tiny

# A model type and a key of `SIZES` -> a checkpoint folder; tests must not write to it.
Checkpoint = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    """`checkpoint("base")` or `checkpoint("custom_voice", "tiny-0.6B")`."""
    return tiny.checkpoint


@pytest.fixture(scope="session")
def ending() -> Checkpoint:
    """The same checkpoints, but they draw the end of speech soon after the end of their text."""
    return tiny.ending
