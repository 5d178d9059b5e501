"""`agent-tts bench quality`: records what servers speak, one run after the other, then measures all that was heard."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from agent_tts.bench import report
from agent_tts.bench.quality import (
    MEASURES,
    TEXTS,
    Judge,
    Recogniser,
    Recording,
    SpeakerVectors,
    compared,
    got_worse,
    summary,
)
from agent_tts.bench.recording import Speak, from_node, from_openai, read_clip, record
from agent_tts.cli.bench import NodeOptions, QualityOptions, names, numbers
from agent_tts.cli.bench_measurements import limits, run, target
from agent_tts.cli.progress import progress
from agent_tts.errors import SettingsError, needing

WAYS = ("live", "whole")
TITLE_CHARS, COLUMN_CHARS = 24, 20  # of a table
NAME = ("server", "way", "callers", "texts")  # of a run


class MeasuredServer(NamedTuple):
    name: str
    node: NodeOptions
    voice: str | None

    @property
    def ways(self) -> tuple[str, ...]:
        """OpenAI's API takes whole texts alone."""
        return WAYS[1:] if self.node.openai else WAYS


def servers(options: QualityOptions) -> Iterator[MeasuredServer]:
    """All that are compared: a node for each combination of the values that --set gives a key, and the one beside."""
    node, voice = options.node, options.voice.voice
    values: defaultdict[str, list[str]] = defaultdict(list)
    for one in node.set_ or ():
        values[one.partition("=")[0].strip()] += [one]
    if node.url is not None and values:
        raise SettingsError("--set is for a node of our own: leave it out with --url, AGENT_TTS_URL")
    for chosen in itertools.product(*values.values()):
        varied = [one for one, of in zip(chosen, values.values(), strict=True) if len(of) > 1]
        name = ", ".join(varied) or (node.url or node.engine_name)
        yield MeasuredServer(name, replace(node, set_=list(chosen)), voice)
    other = options.other
    if other.beside is not None:
        yield MeasuredServer(other.beside, NodeOptions(url=other.beside, key=other.beside_key), other.beside_voice)


@asynccontextmanager
async def opened(
    server: MeasuredServer, options: QualityOptions, callers: int
) -> AsyncIterator[tuple[Speak, dict[str, Any]]]:
    """A server that speaks, and what it tells of itself. Raises as `target`."""
    if server.node.openai:
        info = {"url": server.node.url, "model": options.served_model, "voice": server.voice}
        async with from_openai(server.node.url or "", server.node.key, options.served_model, server.voice) as speak:
            yield speak, info
        return
    session = {"voice": server.voice, "instructions": options.voice.instructions}
    async with target(server.node, session, **{"slots": callers, **limits(callers)}) as (node, info):
        yield from_node(node), info


async def recorded(
    options: QualityOptions, plan: Sequence[tuple[MeasuredServer, list[dict[str, Any]]]]
) -> tuple[dict[str, Any], list[list[Recording]]]:
    """What all servers tell of themselves, and the recordings of each run; `plan` has the names of each one's runs."""
    told: dict[str, Any] = {}
    found = []
    for server, runs in plan:
        async with opened(server, options, max((name["callers"] for name in runs), default=1)) as (speak, info):
            told[server.name] = info
            for name in runs:
                spoken, number = TEXTS[name["texts"]][: options.first], name["callers"]
                every_ms = options.words_every_ms if name["way"] == "live" else 0
                with progress(f"speaking: {titled(name)}", max(number, len(spoken))) as advance:
                    found.append(await record(speak, spoken, name["texts"][:2], number, every_ms, advance))
    return told, found


def quality(options: QualityOptions) -> int:
    """Record, measure, print and write down; 1 if a figure got worse than in --baseline. Raises SettingsError."""
    ways, texts = names("--ways", options.ways, WAYS), names("--texts", options.texts, TEXTS)
    every = list(itertools.product(ways, numbers("--callers", options.callers, int), texts))
    plan = [
        (one, [dict(zip(NAME, (one.name, *rest), strict=True)) for rest in every if rest[0] in one.ways])
        for one in servers(options)
    ]
    runs_to_be = [name for _, some in plan for name in some]
    before = baseline(options.baseline, runs_to_be) if options.baseline is not None else {}
    clip = read_clip(options.clip) if options.clip is not None else None
    with needing("quality"):
        recogniser = Recogniser(options.whisper)
        judge = Judge(recogniser, speaker=options.speaker, clip=clip)
    for kind in texts:
        if not recogniser.speaks(kind[:2]):
            raise SettingsError(f"--whisper {options.whisper} knows English alone: --texts {kind} needs another one")
    if judge.speakers is None:
        print(f"speaker similarity is left out: {SpeakerVectors.PACKAGE}", file=sys.stderr)
    told, found = run(recorded(options, plan))
    runs = [judged(judge, name, recordings) for name, recordings in zip(runs_to_be, found, strict=True)]
    show(runs)
    about = {"servers": told, "whisper": options.whisper}
    options.outputs.write("quality", about, runs, lambda plot: draw(plot, runs))
    worse = [(one, got_worse(one["utterances"], before[key])) for one in runs if (key := titled(one)) in before]
    for one, figures in worse:
        for figure, (low, high) in figures.items():
            print(f"{titled(one)}: WORSE than the baseline: {MEASURES[figure].title}: {low:+g} to {high:+g}")
    return int(any(figures for _, figures in worse))


def judged(judge: Judge, name: Mapping[str, Any], recordings: Sequence[Recording]) -> dict[str, Any]:
    """Name, figures, errors and utterances of a run. One that failed has said nothing: all its words are wrong."""
    with progress(f"listening: {titled(name)}", len(recordings)) as advance:
        found = [(judge.judge(one), advance())[0] for one in recordings]
    each = zip(recordings, found, compared(found), strict=True)
    utterances = [{"text": one.text, "heard": heard.heard, **parts} for one, heard, parts in each]
    errors = Counter(one.error for one in recordings if one.error is not None)
    return {**name, "figures": summary(utterances), "errors": dict(errors), "utterances": utterances}


def titled(one: Mapping[str, Any]) -> str:
    return f"{one['server']}, {one['way']}, {one['callers']} callers, {one['texts']}"


def baseline(path: Path, wanted: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The utterances of each run of an earlier measurement; told before a long one, not after it, if it is of no use.

    Raises SettingsError: the file is none, or has none of the runs with the `wanted` names.
    """
    try:
        found = {titled(one): one["utterances"] for one in json.loads(path.read_text("utf-8"))["runs"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingsError(f"--baseline {path.name}: is no file that --json of this command wrote") from None
    if not found.keys() & set(map(titled, wanted)):
        raise SettingsError(f"--baseline {path.name}: it has no run of these, but {'; '.join(found)}")
    return found


def show(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures, a column for each run, and as many columns beside each other as there is room for."""
    room = max(1, (shutil.get_terminal_size().columns - TITLE_CHARS) // COLUMN_CHARS)
    for some in (runs[begin : begin + room] for begin in range(0, len(runs), room)):
        rows: list[list[object]] = [["utterances", *(len(one["utterances"]) for one in some)]]
        for name, points in figures_of(some).items():
            title, _, digits = MEASURES[name]
            rows.append([title, *(each and " ".join(f"{one:.{digits}f}" for one in each) for each in points)])
        rows.append(["failed", *(report.counted(one["errors"]) for one in some)])
        columns = ["\n".join(str(one[part]) for part in NAME) for one in some]
        report.table("Each figure, and its 99 % interval", ["", *columns], rows)


def draw(plot: report.Plot, runs: Sequence[Mapping[str, Any]]) -> None:
    """A panel for each figure, a point with its interval for each run."""
    panels = {MEASURES[name].title: points for name, points in figures_of(runs).items()}
    plot.panels("What was heard, with 99 % intervals", list(map(titled, runs)), panels)


def figures_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, ...] | None]]:
    """Each figure that a run has, of all runs: value, low, high."""
    found = {name: [one["figures"].get(name) for one in runs] for name in MEASURES}
    return {name: [each and tuple(each.values()) for each in some] for name, some in found.items() if any(some)}
