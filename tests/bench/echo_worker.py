"""A process that measures nothing: what it does is in its job."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agent_tts.bench.workers import ready, work
from agent_tts.errors import AtCapacity


async def main(job: dict[str, Any]) -> list[Any]:
    print("a library says something")
    match job["do"]:
        case "refuse":
            raise AtCapacity("there is no room")
        case "die":
            sys.exit(3)
        case "sleep":
            await asyncio.sleep(60)
    word = await ready()
    print("and again")
    return [job["do"], word]


if __name__ == "__main__":
    work(main)
