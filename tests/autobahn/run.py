"""Autobahn|Testsuite against the node's WebSocket stack: `python -m tests.autobahn.run PYTHON2`; once per release.

The suite needs Python 2.7 with pip and is installed into build/autobahn. It connects to a server that echoes messages
through the node's own classes and deadlines; only the maximum size of a message differs. Every case must pass except
those in `DEVIATIONS`. Compression (12, 13) is off in the node and left out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import uvicorn
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from agent_tts.bench.report import table
from agent_tts.config.settings import Settings
from agent_tts.serve.app import create_app
from agent_tts.serve.processes.listener import listen
from agent_tts.serve.transports.uvicorn_protocols import MAX_FRAGMENTS, NodeConfig

SUITE = "autobahntestsuite==25.10.1"
FOLDER = Path("build/autobahn").absolute()
AGENT = "agent_tts"
MESSAGE_BYTES = 16 << 20
LIMIT_S = 1_800.0
PASSED = {"OK", "NON-STRICT", "INFORMATIONAL"}  # non-strict: later than possible, but allowed

_MANY = f"a message in more than {MAX_FRAGMENTS} fragments is cut: no client needs that many"
DEVIATIONS = {
    "7.1.5": "a close frame inside a fragmented message is an error to the `websockets` library: 1002 in place of 1000",
    **{f"9.{kind}.{size}": _MANY for kind in (3, 4) for size in (1, 2, 3, 4)},
}

START = """
import site, sys
site.addsitedir(sys.argv[1])
from autobahntestsuite.wstest import run
sys.argv[1:] = ["--mode", "fuzzingclient", "--spec", sys.argv[2]]
run()
"""


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """What the suite expects of every path."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] != "websocket.disconnect":
        kind = "text" if message.get("text") is not None else "bytes"
        await send({"type": "websocket.send", kind: message[kind]})


async def _run(*command: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(LIMIT_S):
            if await process.wait():
                raise SystemExit(f"{command[0]} failed: its output is above")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _talk(python2: str) -> None:
    """Run the suite against an echo server."""
    settings = Settings.model_validate({"engine": "tone", "port": 0, "limits": {"message_bytes": MESSAGE_BYTES}})
    with closing(listen(settings)) as listener:
        app = create_app(settings)
        app.router.routes.insert(0, Mount("/", echo))
        config = NodeConfig(app, settings)
        config.lifespan = "off"
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]), name="echo server")
        try:
            spec = {
                "outdir": str(FOLDER / "reports"),
                "servers": [{"agent": AGENT, "url": f"ws://127.0.0.1:{listener.getsockname()[1]}"}],
                "cases": ["*"],
                "exclude-cases": ["12.*", "13.*"],
                "exclude-agent-cases": {},
            }
            (FOLDER / "spec.json").write_text(json.dumps(spec))
            await _run(python2, "-c", START, FOLDER / "python2", FOLDER / "spec.json")
        finally:
            server.should_exit = True
            await serving


def judged() -> int:
    """Print the suite's verdicts; return the number of unexpected ones."""
    found = json.loads((FOLDER / "reports" / "index.json").read_text())[AGENT]
    failed = {case for case, verdict in found.items() if {verdict["behavior"], verdict["behaviorClose"]} - PASSED}
    groups = Counter(case.split(".")[0] for case in found)
    bad = Counter(case.split(".")[0] for case in failed)
    rows = [(group, count, bad[group]) for group, count in sorted(groups.items(), key=lambda row: int(row[0]))]
    table(f"Autobahn|Testsuite: {len(found)} cases", ("group", "cases", "failed"), rows)
    for case in sorted(failed):
        print(f"{case}: {DEVIATIONS.get(case, 'UNEXPECTED, see ' + str(FOLDER / 'reports' / 'index.html'))}")
    for case in sorted(set(DEVIATIONS) - failed):
        print(f"{case}: passes and is no longer a deviation")
    return len(failed ^ set(DEVIATIONS))


async def main() -> int:
    """Install the suite, run it, and evaluate it; return the exit code."""
    python2 = sys.argv[1]
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not (FOLDER / "python2" / "autobahntestsuite").is_dir():
        await _run(python2, "-m", "pip", "install", "--quiet", "--target", FOLDER / "python2", SUITE)
    await _talk(python2)
    return min(1, judged())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
