"""`agent-tts`, the command line."""

import sys

from agent_tts.system.entrance import enter

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with."""
    enter(hangs_up=sys.argv[1:2] not in (["serve"], ["agent"]))
    from agent_tts.cli.app import app
    from agent_tts.cli.options import output_told

    with output_told():
        app()
