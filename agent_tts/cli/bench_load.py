"""Runs of `agent-tts bench load` and `soak`: a node of our own, what it has to hold, and which promises it keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from agent_tts.bench import report
from agent_tts.bench.load import GOOD, SESSIONS, Node, Outcome, expected_s, mixed, sessions, storm
from agent_tts.bench.promises import tell
from agent_tts.bench.soak import Soak, soak
from agent_tts.bench.storm import Storm
from agent_tts.cli.bench_options import OwnNodeOptions
from agent_tts.cli.bench_target import Bar, run, target
from agent_tts.cli.reporting import complain
from agent_tts.errors import SettingsError

SLOTS = 3 * SESSIONS  # nobody waits for one: what is loaded is the front
RTC_PEERS = 48
TITLES = {
    "sessions": f"{SESSIONS} WebSocket sessions at once, on average",
    "mixed": "WebSockets, HTTP and WebRTC, texts of 5 to 2000 characters in 8 languages, 10 % barge-in",
    "storm": f"{Storm().strangers} connections in {Storm().over_s:g} s that never send a byte, and {GOOD} good ones",
    "soak": "short contexts, visitors who vanish, an engine that is killed",
}


def run_load(source: OwnNodeOptions, names: str, seconds: float, session: Mapping[str, Any], json: Path | None) -> None:
    """Put the loads that `names` lists on one node; a table each, and perhaps a file.

    Raises:
        SettingsError: there is no such load, or the file cannot be written.
        SpeechError: the node, or a process of its visitors, has failed.
        typer.Exit: a promise is broken.
    """
    loads: dict[str, Callable[[Node], Awaitable[Outcome]]] = {
        "sessions": lambda node: sessions(node, seconds),
        "mixed": lambda node: mixed(node, seconds),
        "storm": storm,
    }
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in loads:
            raise SettingsError(f"--only {name}: loads are {', '.join(loads)}")
    _run("load", source, {name: loads[name] for name in wanted}, session, json, expected_s(seconds) * len(wanted))


def run_soak(source: OwnNodeOptions, wanted: Soak, session: Mapping[str, Any], json: Path | None) -> None:
    """Soak one node; see `run_load`."""
    loads = {"soak": lambda node: soak(node, wanted)}
    _run("soak", source, loads, session, json, expected_s(wanted.contexts / wanted.rate))


def _run(
    kind: str,
    source: OwnNodeOptions,
    loads: Mapping[str, Callable[[Node], Awaitable[Outcome]]],
    session: Mapping[str, Any],
    json: Path | None,
    seconds: float,
) -> None:
    if json is not None:
        report.check_output("--json", json)

    async def main() -> tuple[dict[str, Any], dict[str, Outcome]]:
        async with target(source, session, slots=SLOTS, limits__rtc_peers=RTC_PEERS) as found:
            node = Node(found.url, found.http_url, found.key, found.pids["front"], found.session)
            with Bar(seconds) as bar:
                return found.info, {name: await bar.during(name, _awaited(load(node))) for name, load in loads.items()}

    info, outcomes = run(main())
    for name, outcome in outcomes.items():
        _tell(name, info, outcome)
    if json is not None:
        runs = [{"load": name, **outcome.as_dict()} for name, outcome in outcomes.items()]
        report.write_json(json, report.document(kind, info, runs))
    broken = sum(not promise.kept for outcome in outcomes.values() for promise in outcome.promises)
    if broken:
        raise complain(f"{broken} of the promises above are broken", 1)


async def _awaited(outcome: Awaitable[Outcome]) -> Outcome:
    return await outcome


def _tell(name: str, info: Mapping[str, Any], outcome: Outcome) -> None:
    figures = outcome.figures
    tell(f"{name}, {info['engine']}: {TITLES[name]}", outcome.promises)
    print(
        f"{figures['visits']} visits, {figures['mean_in_flight']} at once on average and {figures['peak_in_flight']} at"
        f" most; first audio p50 {figures['ttfa_ms']['p50']} ms; client lag p99 {figures['client_lag_ms']['p99']} ms;"
        f" errors {report.counted(figures['errors'])}\n"
    )
