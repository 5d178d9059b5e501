from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import RunningNode, running_node


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    """A node with the tone engine and the usual settings."""
    async with running_node() as made:
        yield made
