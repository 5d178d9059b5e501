"""vox for small models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Threads of models as small as those of the tests wait for each other for longer than they compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_tts.engine.vox.model.cores", lambda: 1.0)
        yield
