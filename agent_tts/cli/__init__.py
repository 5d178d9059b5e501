"""`agent-tts`, the command line."""

import sys

from agent_tts.system.entrance import enter

__all__ = ["main"]

STAYS = (["serve"], ["agent"], ["cluster", "start"], ["cluster", "join"])  # commands that no SIGHUP ends


def main() -> None:
    """Run the command that the process was started with."""
    enter(hangs_up=not any(sys.argv[1 : 1 + len(words)] == words for words in STAYS))
    from agent_tts.cli.app import app
    from agent_tts.cli.options import output_told

    with output_told():
        app()
