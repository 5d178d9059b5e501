"""`agent-tts bench browser`."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_tts.bench import report
from agent_tts.bench.browser import talk
from agent_tts.bench.chat import running_chat
from agent_tts.bench.chromium import find_chromium
from agent_tts.bench.microphone import sentences
from agent_tts.bench.node import own_node
from agent_tts.cli.bench_shared import run
from agent_tts.cli.bench_target import Source, checkpoint

THINK_S = 0.3  # of the language model, before its first word


def run_browser(source: Source, path: str | None, calls: int, turns: int, json: Path | None) -> None:
    """Somebody talks to an agent in Chromium; a table, and perhaps a file.

    Args:
        path: of the browser; None takes the first that is found.

    Raises:
        SettingsError: the options make no sense, or there is no browser.
        SpeechError: the agent cannot be measured.
    """
    if json is not None:
        report.check_output("--json", json)
    path = find_chromium(path)
    found = run(_measure(source, path, calls, turns))
    rows = [(name, *found[key].values()) for key, name in _TIMES.items()]
    rows.append(("mean time in the browser's jitter buffer", found["jitter_buffer_ms"], None))
    rows += [(f"% of a core a call: {name}", share, None) for name, share in found["cpu_percent_per_call"].items()]
    title = (
        f"agent in Chromium: {found['answers']} spoken questions answered, {found['interruptions']} answers interrupted"
    )
    report.table(title, ("ms", "p50", "p95"), rows)
    if json is not None:
        about = {"engine": source.engine, "browser": Path(path).name, "think_s": THINK_S}
        report.write_json(json, report.document("browser", about, [found]))


_TIMES = {
    "voice_to_unheard_ms": "voice at the microphone to answer unheard",
    "told_to_silence_ms": "page told of the voice to last sound arriving",
    "first_word_to_heard_ms": "LLM's first word to first sound heard",
    "asked_to_heard_ms": f"end of the question to first sound heard (LLM thinks for {1_000 * THINK_S:g})",
}


async def _measure(source: Source, path: str, calls: int, turns: int) -> dict[str, Any]:
    spoken = await sentences()
    first_words: list[float] = []

    def said() -> None:
        first_words.append(time.monotonic())

    with checkpoint(source) as model, TemporaryDirectory(prefix="agent-tts-") as folder:
        async with running_chat(think_s=THINK_S, on_first=said) as chat:
            settings: dict[str, object] = {
                "engine": source.engine,
                "slots": 2,  # an answer begins while the one before it is being stopped
                "agent__stt__kind": "scripted",
                "agent__llm__base_url": chat,
                **(model.settings if model else {}),
                **{name.replace(".", "__"): value for name, value in source.settings.items()},
            }
            async with own_node("agent", **settings) as node:
                where = Path(folder)
                return await talk(
                    node.url, spoken, where, lambda: first_words, node.pids, calls=calls, turns=turns, path=path
                )
