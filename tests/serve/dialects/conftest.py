from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.serve.dialects.stock import Stock, stock_clients


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stock() -> AsyncIterator[Stock]:
    async with stock_clients() as made:
        yield made
