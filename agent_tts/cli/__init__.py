"""`agent-tts`, the command line."""

import os
import signal
import sys

from agent_tts.system.entrance import be_init, open_streams

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with."""
    open_streams()
    if sys.platform != "win32":
        if os.getpid() == 1:
            be_init()
        if sys.argv[1:2] in (["serve"], ["agent"]):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until `Reload.serve`
    from agent_tts.cli.app import app
    from agent_tts.cli.options import output_told

    with output_told():
        app()
