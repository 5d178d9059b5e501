"""A worker process that measures nothing: its job says what it does."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agent_tts.bench.workers import ready, work
from agent_tts.errors import AtCapacity


async def main(job: dict[str, Any]) -> list[Any]:
    print("output of a library")
    match job["do"]:
        case "refuse":
            raise AtCapacity("no slot is free")
        case "die":
            sys.exit(3)
        case "sleep":
            await asyncio.sleep(60)
    word = await ready()
    print("and again")
    return [job["do"], word]


if __name__ == "__main__":
    work(main)
