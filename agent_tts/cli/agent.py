"""`agent-tts agent`."""

from __future__ import annotations

from typing import Any

from agent_tts.cli.reporting import config_file, overrides
from agent_tts.cli.serve import welcome
from agent_tts.configuration import load, to_yaml


def agent(config: str | None, flags: dict[str, Any], assignments: list[str], print_config: bool) -> int:
    """Run a node and its agent until it is told to stop; the exit code.

    Raises:
        SettingsError: the settings are wrong, or cannot be had here.
    """
    loaded = load(config_file(config), overrides(flags, assignments))
    if print_config:
        print(to_yaml(loaded), end="")
        return 0
    from agent_tts.serve.run import log_to_stderr, run

    settings = loaded.settings
    log_to_stderr(settings.log_level)  # before Pipecat greets
    from agent_tts.agent.server import AgentServer

    return run(settings, lambda url: welcome(settings, url), AgentServer(settings.agent))
