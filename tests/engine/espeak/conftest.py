"""espeak-ng for the tests of this folder that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from agent_tts.config.settings import Settings
from agent_tts.engine.espeak.engine import EspeakEngine
from agent_tts.engine.espeak.workers import EspeakWorkers
from tests.engine.driver import opened


@pytest.fixture(scope="package")
def espeak() -> Iterator[EspeakWorkers]:
    with closing(EspeakWorkers()) as espeak:
        yield espeak


@pytest.fixture(scope="package")
def speaking() -> Iterator[EspeakEngine]:
    with opened(EspeakEngine(Settings(), 64)) as engine:
        yield engine


@pytest.fixture
def engine(speaking: EspeakEngine, monkeypatch: pytest.MonkeyPatch) -> EspeakEngine:
    """A busy machine does not decide in which step a clause is done."""
    monkeypatch.setattr("agent_tts.engine.espeak.engine.WAIT_S", 30.0)
    return speaking
