from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.serve.dialects.stock import Stock, stock_clients


@pytest.fixture
async def stock() -> AsyncIterator[Stock]:
    async with stock_clients() as made:
        yield made
