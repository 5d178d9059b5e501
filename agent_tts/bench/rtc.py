"""How punctual a node is as a WebRTC peer: N listeners in processes of their own, packets against the 20 ms grid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from typing import Any

from agent_tts.bench.node import cpu_s
from agent_tts.bench.statistics import percentiles
from agent_tts.errors import SpeechError

PEERS_PER_PROCESS = 24
CONNECT_S = 90.0
SETTLE_S = 2.0  # until all are spoken to
CLOSE_S = 5.0  # for a process to close its peers
MARGIN_S = 30.0  # for a process to answer, beyond what it measures


async def listen(
    url: str, key: str | None, count: int, seconds: float, voice: str | None, pids: dict[str, int]
) -> dict[str, Any]:
    """Have `count` peers listen for so many seconds; their figures. Cancelling it ends them.

    Args:
        url: http://, of the node.
        pids: processes whose share of the CPU is told, by name.

    Raises:
        SpeechError: not all of them could connect.
    """
    sizes = [min(PEERS_PER_PROCESS, count - start) for start in range(0, count, PEERS_PER_PROCESS)]
    processes: list[asyncio.subprocess.Process] = []
    patience_s = 0.0  # with processes that are still in the middle of something
    try:
        # One after the other: a handshake costs more than a minute of speech.
        for size in sizes:
            processes.append(await _start(url, key, size, voice))  # noqa: PERF401 - those started are stopped
        await asyncio.sleep(SETTLE_S)
        clients = {f"clients {number}": process.pid for number, process in enumerate(processes)}
        before, begun = _cpu({**pids, **clients}), time.monotonic()
        found = await asyncio.gather(*(_measure(process, seconds) for process in processes))
        after, elapsed = _cpu({**pids, **clients}), time.monotonic() - begun
        patience_s = CLOSE_S
    finally:
        await asyncio.gather(*(_stop(process, patience_s) for process in processes))
    figures = _figures([peer for peers in found for peer in peers])
    used = {name: 100 * (after[name] - before[name]) / elapsed for name in before.keys() & after.keys()}
    shown = {name: round(used[name], 1) for name in pids if name in used}
    figures["cpu_percent"] = {**shown, "clients": round(sum(used[name] for name in clients if name in used), 1)}
    return figures


async def _start(url: str, key: str | None, count: int, voice: str | None) -> asyncio.subprocess.Process:
    """A process of listeners that all hear."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_tts.bench.rtc_peers", url, str(count), *([voice] if voice else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **({"AGENT_TTS_KEY": key} if key else {})},
        limit=1 << 26,  # the answer is one line
        start_new_session=sys.platform != "win32",  # Ctrl-C is for us, who then stop it
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(CONNECT_S):
            line = await process.stdout.readline()
        if line != b"ready\n":
            raise SpeechError(f"{count} WebRTC peers could not connect")
    except BaseException:
        await _stop(process, 0.0)
        raise
    return process


async def _measure(process: asyncio.subprocess.Process, seconds: float) -> list[dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{seconds}\n".encode())
    async with asyncio.timeout(seconds + MARGIN_S):
        line = await process.stdout.readline()
    if not line:
        raise SpeechError("a process of WebRTC peers has died")
    peers: list[dict[str, Any]] = json.loads(line)
    return peers


async def _stop(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """Let a process close its peers, but not for long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(patience_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _cpu(pids: dict[str, int]) -> dict[str, float]:
    return {name: used for name, pid in pids.items() if (used := cpu_s(pid)) is not None}


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
