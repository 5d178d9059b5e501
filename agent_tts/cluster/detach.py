"""`python -m agent_tts.cluster.detach LOG RECORD ARGS...`: start `agent-tts ARGS` with its log in a file, and end.

The node is in a session of its own, and a child of the system's first process: it outlives who started it. Before it is
one, its process writes the record, which stdin has but for which process it is: there is no node without a record.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from agent_tts.system.processes import module_command, started, write_private


def main(log: str, record: str, *args: str) -> None:
    known = json.load(sys.stdin)

    def write_record() -> None:
        write_private(Path(record), json.dumps(known | {"pid": os.getpid(), "started": started(os.getpid())}))

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    command = module_command("agent_tts", *args)
    node = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, preexec_fn=write_record)
    node.returncode = 0  # nobody here waits for it


if __name__ == "__main__":
    main(*sys.argv[1:])
