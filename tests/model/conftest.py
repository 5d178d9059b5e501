"""Checkpoints shared by the tests of the model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.model import oracle, tiny

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


@pytest.fixture(scope="module", autouse=True)
def models_of_a_module() -> Iterator[None]:
    """Models are shared by the tests of a module: all together would take 500 MB."""
    yield
    tiny.models.cache_clear()
    oracle.load.cache_clear()
    gc.collect()
