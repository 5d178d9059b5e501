"""Processes that measure: each gets a job, says that it is ready, is told to go, and answers once.

A process is a module of ours whose last line is `work(main)`. Messages are lines of JSON on its stdin and stdout; what
it has to say to a person goes to stderr. The API key is in AGENT_TTS_KEY.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agent_tts.bench.statistics import together
from agent_tts.errors import SpeechError
from agent_tts.system.in_child import settle
from agent_tts.system.processes import ends

LINE_BYTES = 1 << 28  # an answer with all of its samples is one line
STOP_S = 5.0  # for a process to end, once it has answered
KEY = "AGENT_TTS_KEY"
_MARK = "agent-tts: "  # of lines that are ours: libraries print, too


class Worker:
    """One process. Made by `workers`, which also ends it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        # One that has answered after its job may take its time to end.
        self.answered = False

    async def tell(self, message: dict[str, Any], within_s: float) -> Any:
        """Send its job or the word to go, and wait for the answer. Raises SpeechError, TimeoutError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(within_s):
            while line := await self._process.stdout.readline():
                if line.startswith(_MARK.encode()):
                    break
        if not line:
            raise SpeechError("a process that measures has died: its last words are above")
        found = json.loads(line.removeprefix(_MARK.encode()))
        if "error" in found:
            raise SpeechError(found["error"])
        return found["answer"]

    async def stop(self) -> None:
        """End it: at once, unless it has answered and ends by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await ends(self._process, STOP_S if self.answered else 0)


@asynccontextmanager
async def workers(
    module: str, jobs: Sequence[dict[str, Any]], *, key: str | None = None, ready_s: float
) -> AsyncIterator[list[Worker]]:
    """Processes of a module, one for each job, all ready within `ready_s`; ended with the block.

    Errors are those of `Worker.tell`.
    """
    started: list[Worker] = []
    try:
        for _ in jobs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **({KEY: key} if key else {})},
                limit=LINE_BYTES,
                start_new_session=sys.platform != "win32",  # Ctrl-C is for us, who then stop it
            )
            started.append(Worker(process))
        await together([worker.tell(job, ready_s) for worker, job in zip(started, jobs, strict=True)])
        yield started
    finally:
        await asyncio.gather(*(worker.stop() for worker in started))


async def answers(found: Sequence[Worker], message: dict[str, Any], within_s: float) -> list[Any]:
    """Let all of them go; their answers, in their order. Errors are those of `Worker.tell`."""
    told = await together([worker.tell(message, within_s) for worker in found])
    for worker in found:
        worker.answered = True
    return told


async def ready() -> dict[str, Any]:
    """In a process: say that it is ready; returns the word to go, which may carry something.

    A parent that has died ends the process.
    """
    settle()
    return await report(None)


async def report(answer: Any) -> dict[str, Any]:
    """In a process: tell figures before the end; returns the next word. A parent that has died ends the process."""
    _tell(answer=answer)
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise SystemExit(1)
    found: dict[str, Any] = json.loads(line)
    return found


def work(
    main: Callable[[dict[str, Any]], Coroutine[Any, Any, Any]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Be such a process: `main` gets the job, awaits `ready`, and returns the answer; a `SpeechError` is one, too."""
    line = sys.stdin.readline()
    if not line:
        return
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            _tell(answer=runner.run(main(json.loads(line))))
        except SpeechError as error:
            _tell(error=error.message)
    gc.unfreeze()  # libraries that count what is left at the end look at all of it


def _tell(**message: Any) -> None:
    print(f"{_MARK}{json.dumps(message)}", flush=True)
