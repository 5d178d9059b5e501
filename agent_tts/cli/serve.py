"""`agent-tts serve` and `agent-tts agent`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from agent_tts.config.loading import find_config, load, to_yaml
from agent_tts.config.settings import Settings
from agent_tts.engine.factory import chosen_engine
from agent_tts.ipc.engine_process import engine_settings

if TYPE_CHECKING:
    from agent_tts.agent.server import AgentServer
    from agent_tts.serve.app import Extension


def serve(
    config: str | None,
    flags: dict[str, Any],
    print_config: bool,
    extension: Callable[[Settings], Extension] | None = None,
) -> int:
    """Run a node until a signal ends it; returns the exit code.

    Args:
        flags: settings by dotted keys.
        extension: makes the routes to add to the node, from its settings.
    """
    loaded = load(None if config is None else find_config(config), flags)
    if print_config:
        print(to_yaml(loaded), end="")
        return 0
    from agent_tts.serve.run import run

    settings = loaded.settings
    return run(settings, lambda url: welcome(settings, url), extension(settings) if extension else None)


def agent_extension(settings: Settings) -> AgentServer:
    """The routes of `agent-tts agent`."""
    from agent_tts.serve.telemetry.logs import log_to_stderr

    log_to_stderr(settings.log_level, settings.log_format)  # before the import of Pipecat, which logs
    from agent_tts.agent.server import AgentServer

    return AgentServer(settings.agent)


def welcome(settings: Settings, url: str) -> None:
    """Print on stderr the address of the node, and how to use it."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.print(f"agent-tts: {url}", soft_wrap=True)
        return
    locked = bool(settings.auth.api_keys)
    header = '-H "Authorization: Bearer $AGENT_TTS_KEY" ' if locked else ""
    body = '{"model": "tts-1", "input": "Hello there.", "voice": "nova", "response_format": "wav"}'
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    rows.add_row("page", f"{url}/" if settings.web else "off")
    engines = len(engine_settings(settings))
    rows.add_row("engine", chosen_engine(settings) + (f", {engines} processes" if engines > 1 else ""))
    rows.add_row("voices", f"agent-tts voices --url {url}")
    rows.add_row("keys", f"{len(settings.auth.api_keys)} accepted" if locked else "none needed: this machine only")
    rows.add_row("say", f'agent-tts say --url {url} "Hello there."')
    rows.add_row("curl", f"curl {url}/v1/audio/speech {header}--json '{body}' -o hello.wav")
    console.print(Panel(rows, title="agent-tts", title_align="left", border_style="green", expand=False))
