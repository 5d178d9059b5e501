"""`agent-tts`, the command line."""

from agent_tts.cli.app import app as main

__all__ = ["main"]
