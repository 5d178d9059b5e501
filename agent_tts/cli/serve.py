"""`agent-tts serve` and `agent-tts agent`."""

from __future__ import annotations

import contextlib
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from agent_tts.cli.options import ConfigFlags
from agent_tts.config.loading import Loaded, find_config, load, to_yaml
from agent_tts.config.settings import Settings
from agent_tts.engine.factory import chosen_engine
from agent_tts.errors import to_install
from agent_tts.ipc.engine_process import engine_settings
from agent_tts.serve.fronts import AGENT, front_count


def agent(configuration: ConfigFlags, settings: dict[str, Any]) -> int:
    return serve(configuration, settings, AGENT)


def serve(configuration: ConfigFlags, settings: dict[str, Any], extension: str | None = None) -> int:
    """Run a node until a signal ends it; returns the exit code."""

    def read() -> Loaded:
        return load(find_config(configuration.config), settings)

    loaded = read()
    if configuration.print_config:
        print(to_yaml(loaded), end="")
        return 0
    from agent_tts.serve.processes.process import leave
    from agent_tts.serve.processes.run import run

    leave(run(loaded.settings, lambda url: welcome(loaded.settings, url), extension, lambda: read().settings))


def welcome(settings: Settings, url: str) -> None:
    """Print on stderr the address of the node, and how to use it."""
    console = Console(stderr=True, highlight=False)
    # Nobody may read it, for which the library would exit, and a disk may be full.
    console.on_broken_pipe = lambda: None
    with contextlib.suppress(OSError):
        _welcome(console, settings, url)
        if settings.engine == "auto" and chosen_engine(settings) == "espeak":
            natural = f"the robot voice speaks; for a natural one in English: {to_install('voice')}"
            console.print(f"agent-tts: {natural}", soft_wrap=True, markup=False)


def _welcome(console: Console, settings: Settings, url: str) -> None:
    if not console.is_terminal:
        console.print(f"agent-tts: {url}", soft_wrap=True)
        return
    locked = settings.auth.locked
    header = '-H "Authorization: Bearer $AGENT_TTS_KEY" ' if locked else ""
    body = '{"model": "tts-1", "input": "Hello there.", "voice": "nova", "response_format": "wav"}'
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    rows.add_row("page", f"{url}/" if settings.web else "off")
    rows.add_row("docs", f"{url}/docs/" if settings.web else "off")
    engines = len(engine_settings(settings))
    rows.add_row("engine", chosen_engine(settings) + (f", {engines} processes" if engines > 1 else ""))
    if (fronts := front_count(settings)) > 1:
        rows.add_row("fronts", f"{fronts} processes")
    keys = len([*settings.auth.accepted()])
    rows.add_row("keys", f"{keys} accepted" if locked else "none needed: this machine only")
    console.print(Panel(rows, title="agent-tts", title_align="left", border_style="green", expand=False))
    # They have no frame, and one line each, to be copied.
    for command in (
        f"agent-tts voices --url {url}",
        f'agent-tts say --url {url} "Hello there."',
        f"curl {url}/v1/audio/speech {header}--json '{body}' -o hello.wav",
    ):
        console.print(command, soft_wrap=True, markup=False, highlight=False)
