"""See the package."""

from __future__ import annotations

import asyncio
import json
import os
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families

from agent_tts.bench.node import own_node
from agent_tts.bench.runner import start_time
from agent_tts.bench.workers import answers, workers
from tests.measure.tail.anatomy import report

READY_S = 60.0
MARGIN_S = 40.0  # for the last visits, and the clients to answer


def main(
    out: Annotated[Path, typer.Option(help="Folder for the report and what it was made of.")],
    model: Annotated[str, typer.Option(help="Folder of a checkpoint; empty: the tone.")] = "",
    rate: Annotated[float, typer.Option(help="Visits a second.")] = 100.0,
    seconds: Annotated[float, typer.Option(help="Length of a run.")] = 20.0,
    warm_s: Annotated[float, typer.Option(help="Of a run before it that is not recorded.")] = 5.0,
    clients: Annotated[int, typer.Option(help="Processes of strangers.")] = 8,
    slots: Annotated[int, typer.Option(help="Slots of the node.")] = 512,
    frames: Annotated[int, typer.Option(help="Frames of a request, at most.")] = 60,
    pace_ms: Annotated[float, typer.Option(help="Between two words.")] = 10.0,
    words: Annotated[int, typer.Option(help="Words of a request, at least.")] = 12,
    voice: Annotated[str, typer.Option(help="Voice of all; empty: the default.")] = "ryan",
    probe: Annotated[bool, typer.Option(help="Record the node's processes.")] = True,
    slowest: Annotated[int, typer.Option(help="Visits to show in detail.")] = 20,
    setting: Annotated[list[str] | None, typer.Option(help="More settings of the node, KEY=VALUE.")] = None,
) -> None:
    """Run a node under a load of strangers, and tell where the time of its slow first audios goes."""
    out.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {"slots": slots, "limits__max_frames": frames, "engine": "qwen3" if model else "tone"}
    if model:
        settings["qwen3__models"] = model
    settings |= {key.replace(".", "__"): value for key, _, value in (one.partition("=") for one in setting or [])}
    job = {
        "pace_s": pace_ms / 1_000,
        "texts": _texts(words),
        "options": {"language": "en", **({"voice": voice} if voice and model else {})},
    }
    with TemporaryDirectory() as kept:
        folder = Path(kept)
        visits, lags, histograms = asyncio.run(
            _run(settings, job, folder, rate, clients, [warm_s, seconds], probe=probe)
        )
        lines = [*histograms, *report(folder, visits, lags, slowest)]
    (out / "visits.json").write_text(json.dumps(visits))
    (out / "report.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:120]))


def _texts(words: int) -> list[str]:
    """Texts of `words` words at least, of whole sentences."""
    sentences = json.loads(files("agent_tts.bench").joinpath("texts.json").read_text("utf-8"))["sentences"]
    texts = []
    for first in range(len(sentences)):
        text = sentences[first]
        number = first
        while len(text.split()) < words:
            number = (number + 1) % len(sentences)
            text = f"{text} {sentences[number]}"
        texts.append(text)
    return texts


async def _run(
    settings: dict[str, Any],
    job: dict[str, Any],
    folder: Path,
    rate: float,
    clients: int,
    runs: list[float],
    *,
    probe: bool,
) -> tuple[list[dict[str, Any]], list[tuple[float, float]], list[str]]:
    """The visits of the last run, the lags of the clients' loops, and lines of the node's own figures of that run."""
    if probe:
        here = str(Path(__file__).parent / "site")
        os.environ["PYTHON_TAIL_OUT"] = str(folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    visits: list[dict[str, Any]] = []
    lags: list[tuple[float, float]] = []
    histograms: list[str] = []
    async with own_node(**settings) as node:
        os.environ.pop("PYTHON_TAIL_OUT", None)
        url = f"{node.url.replace('http', 'ws', 1)}/v1/tts/stream"
        for number, seconds in enumerate(runs):
            if not seconds:
                continue
            jobs = [
                {**job, "url": url, "rate": rate / clients, "seconds": seconds, "seed": 1_000 * number + client}
                for client in range(clients)
            ]
            async with workers("tests.measure.tail.client", jobs, ready_s=READY_S) as found:
                before = await _buckets(node.url)
                told = await answers(found, {"start": start_time()}, seconds + MARGIN_S)
                histograms += _grown(f"run {number}", before, await _buckets(node.url))
            visits = [visit for answer in told for visit in answer["visits"]]
            lags = [(at, late) for answer in told for at, late in answer["lags"]]
    return visits, lags, histograms


HISTOGRAMS = (
    "agent_tts_engine_step_seconds_bucket",
    "agent_tts_loop_lag_seconds_bucket",
    "agent_tts_ttfa_seconds_bucket",
)


async def _buckets(url: str) -> dict[str, dict[float, float]]:
    """Counts by upper bound, of each of `HISTOGRAMS`."""
    async with httpx.AsyncClient() as client:
        families = text_string_to_metric_families((await client.get(f"{url}/metrics")).text)
    found: dict[str, dict[float, float]] = {name: {} for name in HISTOGRAMS}
    for sample in (sample for family in families for sample in family.samples if sample.name in found):
        bounds, bound = found[sample.name], float(sample.labels["le"])
        bounds[bound] = bounds.get(bound, 0.0) + sample.value
    return found


def _grown(run: str, before: dict[str, dict[float, float]], after: dict[str, dict[float, float]]) -> list[str]:
    """What came into each bucket meanwhile."""
    lines = []
    for name, bounds in after.items():
        counts = {bound: count - before[name].get(bound, 0.0) for bound, count in sorted(bounds.items())}
        each = [count - below for count, below in zip(counts.values(), [0.0, *counts.values()], strict=False)]
        shown = (f"{1_000 * bound:g}: {count:.0f}" for bound, count in zip(counts, each, strict=True) if count)
        lines.append(f"{run}, {name.removesuffix('_bucket')}, up to ms: {', '.join(shown)}")
    return lines


if __name__ == "__main__":
    typer.run(main)
