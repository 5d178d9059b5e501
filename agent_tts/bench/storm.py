"""A storm of connections: strangers who connect and never send a byte, while others want to speak."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from agent_tts.bench.clients import READY_S
from agent_tts.bench.workers import answers, workers

PROBES_PER_S = 10  # of the node's health, meanwhile
MARGIN_S = 30.0  # for the process to answer, beyond the storm
MODULE = "agent_tts.bench.storm_client"


@dataclass(frozen=True, slots=True)
class Storm:
    """Who comes."""

    strangers: int = 900
    over_s: float = 2.0  # in which all of them connect, evenly
    watched_s: float = 12.0  # from its begin on


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What became of the strangers, and what others were told meanwhile."""

    connected: int
    left: int  # strangers whom the node had not sent away in the end
    stayed_s: list[float]  # of each that was sent away
    unhealthy: int  # probes of `/health` without an answer of 200
    probe_ms: list[float]


@asynccontextmanager
async def gathered(http_url: str, storm: Storm) -> AsyncIterator[Callable[[float], Coroutine[Any, Any, Aftermath]]]:
    """A process of strangers that is ready to come, once, from a time on; ended with the block.

    What is called with the start, on the monotonic clock, raises `SpeechError` when the process fails.

    Raises:
        SpeechError: it cannot do its job.
    """
    job: dict[str, Any] = {"url": http_url, "storm": asdict(storm)}
    async with workers(MODULE, [job], ready_s=READY_S) as found:

        async def blow(start: float) -> Aftermath:
            within_s = start - time.monotonic() + storm.watched_s + MARGIN_S
            [answer] = await answers(found, {"start": start}, within_s)
            return Aftermath(**answer)

        yield blow
