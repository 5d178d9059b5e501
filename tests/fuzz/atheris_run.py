"""Coverage-guided fuzzing: `python -m tests.fuzz.atheris_run TARGET [options of libFuzzer]`; see `targets`.

New inputs are collected in build/fuzz/TARGET, beside the seeds. A failing one is written there as crash-*. Shorten it
with `-minimize_crash=1` and add it to corpus/TARGET: every test run replays it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["agent_tts", "python_multipart", "json"]):
    from tests.fuzz.seeds import SEEDS, TALK
    from tests.fuzz.targets import LANGUAGES, TARGETS

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path("build/fuzz")


def main() -> None:
    """Fuzz until libFuzzer stops, for example with `-max_total_time=30` or `-runs=100000`."""
    name, options = sys.argv[1], sys.argv[2:]
    found = FOUND / name
    found.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(_seeds(name)):
        (found / f"seed-{number}").write_bytes(seed)
    kept = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    options += [f"-artifact_prefix={found}/", "-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(found), *kept], TARGETS[name])
    atheris.Fuzz()


def _seeds(name: str) -> list[bytes]:
    if name != "talk":
        return SEEDS[name]
    paths = sorted(LANGUAGES)
    return [bytes([number]) + talk.encode() for number, path in enumerate(paths) for talk in TALK.get(path, [])]


if __name__ == "__main__":
    main()
