"""The run of `agent-tts bench words`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_tts.bench import report
from agent_tts.bench.words import TEXTS, measure
from agent_tts.cli.bench_shared import run
from agent_tts.cli.link import engine, own_settings
from agent_tts.errors import SettingsError


def run_words(languages: str, flush: bool, json: Path | None) -> None:
    """Measure each language, print a table, and write the figures to `json`.

    Raises:
        SettingsError: there is no text in a language, or the file cannot be written.
        SpeechError: the engine does not start.
    """
    chosen = languages.split(",")
    if unknown := sorted(set(chosen) - TEXTS.keys()):
        raise SettingsError(f"--languages {','.join(unknown)}: there are texts in {', '.join(TEXTS)}")
    if json is not None:
        report.check_output("--json", json)

    async def main() -> list[dict[str, Any]]:
        async with engine(own_settings({"engine": "espeak"})) as (service, _):
            return [await measure(service, language, TEXTS[language], flush) for language in chosen]

    runs = run(main())
    rows = [
        (each["language"], each["words"], *(each[name][p] for name in _NAMES for p in ("p50", "p95"))) for each in runs
    ]
    report.table("words: how far off, against espeak's own times", ("language", "words", *_COLUMNS), rows)
    if json is not None:
        report.write_json(json, report.document("words", {"engine": "espeak", "flush": flush}, runs))


_NAMES = ("first_ms", "settled_ms", "known_ms", "drift_ms", "heard_words")
_COLUMNS = tuple(
    column
    for name in ("told with the text ms", "with the audio ms", "afterwards ms", "last word ms", "heard words")
    for column in (f"{name} p50", "p95")
)
