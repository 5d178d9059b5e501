"""No attack: the figures of the polite caller alone, to compare the others with."""

from __future__ import annotations

import asyncio

from tests.attack.harness import Target, attack


@attack("none")
async def nothing(target: Target) -> str:
    await asyncio.sleep(target.scaled(20, 0.5))
    return ""
