"""Callers of the fixture `node`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.rtc_peer import RtcPeer, connected
from tests.support import RunningNode


@pytest.fixture
async def peer(node: RunningNode) -> AsyncIterator[RtcPeer]:
    async with connected(node.url) as made:
        yield made


@pytest.fixture
async def other(node: RunningNode) -> AsyncIterator[RtcPeer]:
    async with connected(node.url) as made:
        yield made
