"""`agent-tts bench agent`: calls an agent by script, then measures all that was heard."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent_tts.bench import report
from agent_tts.bench.calls import NO_CALL, CallStep, Voiced, call, figures, recognise, voiced
from agent_tts.bench.dialogue import AgentScript, Thresholds, script_of
from agent_tts.bench.lines import AgentLine, node_line, realtime_line
from agent_tts.bench.load import Promise
from agent_tts.bench.node import own_node
from agent_tts.bench.quality import Recogniser, whisper_source
from agent_tts.bench.runner import CLIENT_LATE_MS
from agent_tts.bench.scripted_llm import scripted_llm
from agent_tts.bench.statistics import lag_watched, percentiles, together
from agent_tts.cli.bench import AgentOptions
from agent_tts.cli.bench_measurements import limits, run
from agent_tts.cli.progress import progress
from agent_tts.client.connection import ConnectionLost, http_url
from agent_tts.errors import SpeechError, needing

LOOKS, LOOK_S = 600, 0.2  # whether a recogniser is there
SPARE_CALLS = 4  # of a node that is started: a call that has ended is one for a moment longer

Dial = Callable[[], AbstractAsyncContextManager[AgentLine]]


def agent(options: AgentOptions) -> int:
    """Call, measure, print and write down; 1 if a figure is over its threshold. Raises SettingsError."""
    script = script_of(options.scenarios)
    folder = options.recordings or Path(options.scenarios).parent
    with needing("quality"):
        recogniser = Recogniser(options.whisper)
    with needing("voice"), progress("speaking", len(script.scenarios)) as advance:
        wanted = [(voiced(scenario, folder), advance())[0] for scenario in script.scenarios]
    about, done, lag_ms = run(measured(options, script, wanted))
    with progress("listening", len(done)) as advance:
        for one in done:
            recognise(one, recogniser)
            advance()
    found = figures(done)
    most = {name: least for name, least in script.thresholds if least is not None and found[name] is not None}
    promises = {name: Promise(title(name), found[name], least) for name, least in most.items()}
    show(options.scenarios, found, promises, done)
    if lag_ms["p99"] is not None and lag_ms["p99"] > CLIENT_LATE_MS:
        print(f"NO FIGURES OF THE AGENT: the callers were the limit: {lag_ms['p99']} ms late at p99")
    written = {**found, "client_lag_ms": lag_ms, "steps": [one.document() for one in done]}
    times = [("to the answer", [one.answer_ms for one in done]), ("to silence", [one.silence_ms for one in done])]
    options.outputs.write("agent", about, [written], lambda plot: plot.times("Turns of calls", times, "time, ms"))
    return int(any(not promise.kept for promise in promises.values()))


async def measured(
    options: AgentOptions, script: AgentScript, wanted: Sequence[Voiced]
) -> tuple[dict[str, Any], list[CallStep], dict[str, float | None]]:
    """What the agent tells of itself, the steps, and how late this process was. Raises SpeechError: nobody answers."""
    async with opened(options, script) as (dial, about):
        with progress(f"calling: {options.scenarios}", len(script.scenarios)) as advance:
            async with lag_watched() as late_ms:
                done = await calls(dial, wanted, options.callers, advance)
    if all(one.found == NO_CALL for one in done):
        raise ConnectionLost(done[0].wrong[0])
    return about, done, percentiles(late_ms, 50, 99, 100)


@asynccontextmanager
async def opened(options: AgentOptions, script: AgentScript) -> AsyncIterator[tuple[Dial, dict[str, Any]]]:
    """What connects a caller, and what the agent tells of itself. Raises SpeechError."""
    url, key, callers = options.node.url, options.node.key, options.callers
    if url is not None and urlsplit(url).path.rstrip("/").endswith("/realtime"):
        yield partial(realtime_line, url, key), {"url": url}
        return
    async with AsyncExitStack() as stack:
        if url is None:
            llm = stack.enter_context(scripted_llm(script.answer_to))
            room = {"agent__calls": callers + SPARE_CALLS, **limits(callers)}
            settings = {"agent__llm__base_url": llm, "agent__stt__model": whisper_source(options.whisper), **room}
            scripted = {key.replace(".", "__"): value for key, value in script.settings.items()}
            node = own_node("agent", **settings | scripted | options.node.settings)
            url = (await stack.enter_async_context(node)).url
            await _hearing(url)
        yield partial(node_line, http_url(url), key), {"url": url}


async def _hearing(url: str) -> None:
    """Wait until a node's agent recognises speech. Raises SpeechError: it does not."""
    async with httpx.AsyncClient(base_url=url) as client:
        for _ in range(LOOKS):
            found = (await client.get("/api/agent")).json()["stt"]
            if found["kind"] != "none":
                return
            await asyncio.sleep(LOOK_S)
    raise SpeechError(f"the agent hears nothing: {found['message']}")  # pyrefly: ignore[unbound-name]


async def calls(
    dial: Dial, wanted: Sequence[Voiced], callers: int, advance: Callable[[], None] = lambda: None
) -> list[CallStep]:
    """All steps, by callers at once who take the scenarios in turn; those of a call that fails, too."""
    waiting = iter(enumerate(wanted))
    found: dict[int, list[CallStep]] = {}

    async def caller() -> None:
        for number, one in waiting:
            scenario, _ = one
            try:
                async with dial() as line:
                    found[number] = await call(line, one)
                    found[number][-1].wrong += line.failures
            except (SpeechError, TimeoutError) as error:
                why = str(error) or "the line is stuck"
                print(f"{scenario.name}: {why}", file=sys.stderr)
                found[number] = [
                    CallStep(scenario.name, at, step, wrong=[why]) for at, step in enumerate(scenario.turns, 1)
                ]
            advance()

    await together(caller() for _ in range(callers))
    return [one for _, done in sorted(found.items()) for one in done]


def title(name: str) -> str:
    """Of a figure."""
    return Thresholds.model_fields[name].description or name


def show(name: str, found: dict[str, float | None], promises: dict[str, Promise], done: Sequence[CallStep]) -> None:
    """Print the figures, and what was not as expected."""
    rows: list[list[object]] = []
    for figure, value in found.items():
        promise = promises.get(figure)
        rows.append([title(figure), value, *((promise.most, "yes" if promise.kept else "NO") if promise else "--")])
    report.table(f"{name}: {len(done)} steps", ("figure", "found", "at most", "kept"), rows)
    if failed := [one for one in done if not one.passed]:
        cells = []
        for one in failed:
            what = (one.scenario, f"{one.number} {one.step.verb}", one.step.text, one.step.expected)
            cells.append((*what, "; ".join([one.found, *one.wrong]), one.recognised))
        report.table("Not as expected", ("call", "step", "said", "expected", "found", "recognised"), cells)
