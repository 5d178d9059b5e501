"""One front process, as the supervisor sees it, from start to end: its channel, heartbeats, stderr."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from loguru import logger

from agent_tts.config.settings import is_of_environment
from agent_tts.errors import SettingsError, SpeechError
from agent_tts.ipc.channel import Channel
from agent_tts.ipc.connection import BEATS
from agent_tts.ipc.front_messages import Beat, ToSupervisor
from agent_tts.messages import EngineReady
from agent_tts.system.processes import DUMP_S, ChildProcess


class FrontProcess(ChildProcess):
    """One front process, from `start` to `end`."""

    def __init__(self, number: int, heartbeat_s: float) -> None:
        super().__init__(f"front {number}")
        self.number = number  # among the node's fronts, from 0
        self._beat_s = heartbeat_s / BEATS
        # Kept by the supervisor: whether it can take links, was told to take requests, and has said that it does.
        self.set_up = False
        self.serves = False
        self.ready = False
        # They are kept by engine: what the one to which it has a link said at its start, and who makes a link.
        self.links: dict[int, EngineReady] = {}
        self.linking: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Why it serves nobody any more; completed as soon as that is known.
        self.gone: asyncio.Future[str] = self._loop.create_future()
        self._hung = False
        ours, self._theirs = socket.socketpair()
        self.channel = Channel(ours, ToSupervisor, self.lose)
        # All that is under way for it.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Spawn it. After an error or a cancellation `end` is due, as after all else. Raises `OSError`."""
        log = os.dup(2)  # stderr
        passed = (self._theirs.fileno(), log)
        try:
            # Its own stderr is a pipe to here: what it cannot log. Its log goes where this process's goes.
            await self.spawn(
                *("agent_tts.serve.processes.front", *map(str, (os.getpid(), *passed, self.number))),
                # It gets the settings by the channel: no secret is in an environment or a command line.
                passes=lambda name: not is_of_environment(name),
                pass_fds=passed,
            )
        finally:
            os.close(log)
            self._theirs.close()

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do something for this front, in a task that ends with it."""
        task = asyncio.create_task(work, name=f"front {self.number}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.opt(exception=error).error("{} failed", task.get_name())
            self.lose("the supervisor has a fault")

    async def watch(self) -> None:
        """Send heartbeats until it counts as hung."""
        unanswered = 0
        # Counts beats, not seconds: after a pause of this process, answers that wait still count.
        while unanswered < BEATS:
            try:
                await self.channel.ask(Beat(), self._beat_s)
            except SpeechError:
                unanswered += 1
            else:
                unanswered = 0
                await asyncio.sleep(self._beat_s)
        self._hung = True
        self.lose(f"no answer for {self._beat_s * BEATS:g} s")

    async def end(self) -> None:
        """Kill it, if it runs, and reap it, within seconds. Idempotent. Cancelling skips the wait, never the kill."""
        self.lose("stopped")
        is_exiting = self.channel.closed
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, self.channel.close(), return_exceptions=True)
            if self._hung:
                await self.write_stacks()
            elif is_exiting:
                await asyncio.wait([self.exited], timeout=DUMP_S)
        finally:
            self._theirs.close()
            self.kill()
            await self.reap()

    def lose(self, why: str | SettingsError) -> None:
        """Give it up, for a reason or an error that `gone` raises: `end` follows."""
        if not self.gone.done():
            self.gone.set_result(why) if isinstance(why, str) else self.gone.set_exception(why)

    def process_exited(self) -> None:
        super().process_exited()
        self.lose("it ended")
