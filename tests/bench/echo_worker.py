"""A worker process that measures nothing: its job says what it does."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agent_tts.bench.workers import WorkerJob, work
from agent_tts.errors import AtCapacity


async def main(job: dict[str, Any], worker: WorkerJob) -> None:
    print("output of a library")
    match job["do"]:
        case "refuse":
            raise AtCapacity("no slot is free")
        case "die":
            sys.exit(3)
        case "sleep":
            await asyncio.sleep(60)
    word = await worker.ready()
    print("and again")
    worker.answer([job["do"], word])


if __name__ == "__main__":
    work(main)
