"""`agent-tts bench agent`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_tts.bench import report
from agent_tts.bench.agent import converse
from agent_tts.bench.chat import running_chat
from agent_tts.bench.node import own_node
from agent_tts.cli.bench_shared import counts, run
from agent_tts.cli.bench_target import Source
from agent_tts.client.connection import http_url


def run_agent(source: Source, calls: str, turns: int, json: Path | None) -> None:
    """Callers at each of the numbers in `calls`; a table, and perhaps a file.

    Raises:
        SettingsError: the options make no sense.
        SpeechError: the agent cannot be measured.
    """
    sizes = counts("--calls", calls)
    if json is not None:
        report.check_output("--json", json)

    async def main() -> list[dict[str, Any]]:
        async with _agent(source, max(sizes)) as (url, pids):
            return [await converse(url, source.key, size, turns, pids) for size in sizes]

    runs = run(main())
    rows = [
        (
            *(each["calls"], each["answers"]),
            *(value for name in _TIMES for value in each[name].values()),
            *each["cpu_percent_per_call"].values(),
        )
        for each in runs
    ]
    processes = [f"cpu % a call {name}" for name in runs[0]["cpu_percent_per_call"]]
    columns = (
        *("calls", "answers", "interrupt to silence ms p50", "p95", "first word to audio ms p50", "p95"),
        *("typed to heard ms p50", "p95", *processes),
    )
    report.table("agent: typed interruptions, heard by WebRTC peers (their jitter buffer holds 80 ms)", columns, rows)
    if json is not None:
        report.write_json(json, report.document("agent", {"engine": source.engine, "url": source.url}, runs))


_TIMES = ("interrupt_to_silence_ms", "first_word_to_audio_ms", "typed_to_heard_ms")


@asynccontextmanager
async def _agent(source: Source, calls: int) -> AsyncIterator[tuple[str, dict[str, int]]]:
    """The URL of a node with an agent, and its processes where they are ours."""
    if source.url is not None:
        yield http_url(source.url), {}
        return
    async with running_chat() as chat:
        settings = {
            "engine": source.engine,
            "slots": 2 * calls,
            "agent__calls": calls,
            "agent__stt__kind": "none",
            "agent__llm__base_url": chat,
            **{name.replace(".", "__"): value for name, value in source.settings.items()},
        }
        async with own_node("agent", **settings) as node:
            yield node.url, node.pids
