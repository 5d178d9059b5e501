"""The run of `agent-tts bench frame`: from options to measurements and a table."""

from __future__ import annotations

from pathlib import Path

from agent_tts.bench import report
from agent_tts.cli.bench_options import counts
from agent_tts.errors import SettingsError


def run_frame(
    synthetic: str | None, folder: Path | None, batches: str, context: int, fused: bool, json: Path | None
) -> None:
    """Measure, print, and write the figures to `json`.

    Raises:
        SettingsError: the options make no sense, there is no GPU, or the checkpoint cannot be used.
    """
    if (synthetic is None) == (folder is None):
        raise SettingsError("--synthetic 1.7B and --model FOLDER are two ways to have a model: choose one")
    sizes = counts("--batches", batches)
    if json is not None:
        report.check_output("--json", json)
    try:
        from agent_tts.bench import frame
    except ImportError as error:
        raise SettingsError(f"{error.name} is not installed: pip install 'agent-tts[qwen]'") from error
    model = frame.synthetic(synthetic) if synthetic is not None else frame.load(folder or Path())
    runs = list(frame.measure(model, sizes, context, fused=fused))
    versions = frame.versions()
    title = f"{versions['gpu']}, torch {versions['torch']}: ms a frame, context {context}"
    rows = [(run["batch"], *(_told(run["ms"].get(part)) for part in frame.PARTS), run["audio_s_per_s"]) for run in runs]
    report.table(title, ("batch", *frame.PARTS, "audio s/s"), rows)
    if json is not None:
        model_name = f"synthetic {synthetic}" if synthetic is not None else "checkpoint"
        report.write_json(json, report.document("frame", {"model": model_name, **versions}, runs))


def _told(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.2f}"
