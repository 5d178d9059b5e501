"""`make cluster-demo`: four machines of a cluster on this one, with the tone engine. It says what it does."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from tests.cluster.machines import Caller, callers, hang_up, machines, open_door, until_nodes

SLOTS = 4  # of each node
CALLERS = (4, 4, 4)  # who come, each time when a node has room for them


def say(began: float, text: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


def spread(spoken_to: list[Caller]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(Counter(each.node for each in spoken_to).items()))


async def demo(folder: Path) -> None:
    began = time.monotonic()
    say(began, "four machines start: `agent-tts cluster start`, and `agent-tts cluster join` three times")
    async with machines(folder, 3, f"slots={SLOTS}", idle_s=5) as (head, *others):
        await until_nodes(head, 1)
        say(began, f"one node takes callers at {await head.url()}, and at the doors of the other three machines")
        async with AsyncExitStack() as calls:
            spoken_to: list[Caller] = []
            for number, (door, more) in enumerate(zip((head, *others[:2]), CALLERS, strict=True), 2):
                spoken_to += await calls.enter_async_context(callers(await open_door(door), more, moves=True))
                say(began, f"{len(spoken_to)} callers are spoken to, on {spread(spoken_to)}: all slots are in use")
                await until_nodes(head, number)
                say(began, f"{number} nodes take callers")
            name, pid = next((name, pid) for each in (head, *others) for name, pid in each.nodes().items())
            os.kill(pid, signal.SIGKILL)
            say(began, f"the node {name} is killed: its callers go on at others, from the next word")
            await until_nodes(head, 4)
            say(began, "it is back")
            await hang_up(spoken_to)
            seconds = sum(caller.samples for caller in spoken_to) / 24_000
            say(began, f"all hang up: {seconds:.0f} s of audio came, every sample counted, none lost or doubled")
        left = await until_nodes(head, 1)
        say(began, f"the nodes that are too many have ended; left is {', '.join(left)}")
    say(began, "all has ended")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cluster-") as temporary:
        asyncio.run(demo(Path(temporary)))
