"""`agent-tts agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_tts.cli.serve import serve
from agent_tts.config.settings import Settings

if TYPE_CHECKING:
    from agent_tts.agent.server import AgentServer


def agent(config: str | None, flags: dict[str, Any], assignments: list[str], print_config: bool) -> int:
    """Run a node and its agent until it is told to stop; see `serve`."""
    return serve(config, flags, assignments, print_config, _extension)


def _extension(settings: Settings) -> AgentServer:
    from agent_tts.serve.telemetry.logs import log_to_stderr

    log_to_stderr(settings.log_level, settings.log_format)  # before Pipecat greets
    from agent_tts.agent.server import AgentServer

    return AgentServer(settings.agent)
