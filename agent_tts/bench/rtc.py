"""How punctual a node is as a WebRTC peer: N listeners in processes of their own, packets against the 20 ms grid."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from agent_tts.bench.clients import by_name
from agent_tts.bench.node import cpu_percent
from agent_tts.bench.statistics import percentiles
from agent_tts.bench.workers import answers, workers

PEERS_PER_PROCESS = 24
CONNECT_S = 90.0
SETTLE_S = 2.0  # until all are spoken to
MARGIN_S = 30.0  # for a process to answer, beyond what it measures
MODULE = "agent_tts.bench.rtc_peers"


async def listen(
    url: str, key: str | None, count: int, seconds: float, voice: str | None, pids: Mapping[str, int]
) -> dict[str, Any]:
    """Have `count` peers listen for so many seconds; their figures. Cancelling it ends them.

    Args:
        url: http://, of the node.
        pids: processes whose share of the CPU is told, by name.

    Raises:
        SpeechError: not all of them could connect.
    """
    sizes = [min(PEERS_PER_PROCESS, count - start) for start in range(0, count, PEERS_PER_PROCESS)]
    jobs = [{"url": url, "count": size, "voice": voice} for size in sizes]
    # One after the other: a handshake costs more than a minute of speech.
    async with workers(MODULE, jobs, key=key, ready_s=CONNECT_S, in_turn=True) as found:
        await asyncio.sleep(SETTLE_S)
        begin = time.monotonic()
        peers, cpu = await asyncio.gather(
            answers(found, {"seconds": seconds}, seconds + MARGIN_S),
            cpu_percent(by_name(pids, found), begin, begin + seconds),
        )
    figures = _figures([peer for some in peers for peer in some])
    figures["cpu_percent"] = cpu
    return figures


def _figures(peers: list[dict[str, Any]]) -> dict[str, Any]:
    late = [value for peer in peers for value in peer["all_lateness_ms"]]
    worst = [peer["lateness_ms"]["p99"] for peer in peers if peer["packets"]]
    return {
        "peers": len(peers),
        "packets": len(late),
        "lost": sum(peer["lost"] for peer in peers),
        "silent": sum(not peer["packets"] for peer in peers),
        "lateness_ms": percentiles(late, 50, 99, 100),
        # Of the peer that fared worst.
        "worst_p99_ms": max(worst, default=None),
        "errors": dict(Counter(code for peer in peers for code in peer["errors"])),
    }
