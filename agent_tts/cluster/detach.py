"""`python -m agent_tts.cluster.detach LOG ARGS...`: start `agent-tts ARGS` with its log in a file, print its pid, end.

The node is in a session of its own, and a child of the system's first process: it outlives who started it.
"""

from __future__ import annotations

import os
import subprocess
import sys

from agent_tts.system.processes import module_command


def main(log: str, *args: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    node = subprocess.Popen(
        module_command("agent_tts", *args), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
    )
    node.returncode = 0  # nobody here waits for it
    print(node.pid)


if __name__ == "__main__":
    main(*sys.argv[1:])
