"""`agent-tts`, the command line."""

from __future__ import annotations

from agent_tts.cli.app import app


def main() -> None:
    """Run the command line; leaves with its exit code."""
    app()
