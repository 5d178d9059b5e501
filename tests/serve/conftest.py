from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agent_tts.speech.utterance import Utterance
from tests.support import RunningNode, recorded, running_node


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    """A node with the tone engine and the usual settings."""
    async with running_node() as made:
        yield made


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that utterances of this process get at once."""
    return recorded(monkeypatch, Utterance, "write", lambda _, text: len(text))
