"""What a node with several fronts is as a whole: its supervisor's answers to the fronts' questions."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent_tts.config.settings import Settings
from agent_tts.errors import RETRY_MS, AtCapacity, BadMessage, SpeechError
from agent_tts.ipc import front_messages
from agent_tts.ipc.channel import Channel
from agent_tts.serve.access.ledger_client import NodeLedger
from agent_tts.serve.access.supervisor_client import NO_SESSION, OTHERS_S, PAGE_S, front_of
from agent_tts.serve.telemetry.metrics import EngineMetrics
from agent_tts.serve.telemetry.pages import NodePages, read

A = TypeVar("A")

FRONT_PAGE_S = PAGE_S / 5  # longest wait for the metrics of a front; then its last ones count


class NodeCounts:
    """Counts what fronts do together, merges their metrics, and brings questions to the front that has a session."""

    def __init__(self, settings: Settings) -> None:
        self.ledger = NodeLedger(settings, tell=self._tell_free_at)
        # The channels to the fronts that run, by number.
        self._channels: dict[int, Channel] = {}
        self.for_calls: set[int] = set()  # of them, those that are ready to run the calls that others do not run
        registry = self._registry = CollectorRegistry()
        # Observes the node's engines.
        self.engines = EngineMetrics(registry)
        up = "Whether it answers; if not, its last metrics count."
        self._up = Gauge("agent_tts_front_up", up, ["front"], registry=registry)
        self._starts = Counter("agent_tts_front_starts", "Front processes started.", ["front"], registry=registry)
        if self.ledger.fleet is not None:
            self.ledger.fleet.show(registry)
        self._pages = NodePages()
        # Held while a page is made; the last one, and when its making began.
        self._making = asyncio.Lock()
        self._page_of = ("", -math.inf)

    def attach(self, front: int, channel: Channel) -> None:
        """A front process has been started; its first message has not been read. `lose` ends this."""
        self._channels[front] = channel
        self._starts.labels(front).inc()
        self._up.labels(front).set(1)
        ledger = self.ledger
        channel.handle(front_messages.Claim, partial(ledger.grant, front))
        channel.handle(front_messages.Release, lambda told: ledger.release(told.number, front, unused=told.unused))
        channel.handle(front_messages.TakeRequests, lambda wanted: ledger.requests(wanted.key_id))
        channel.handle(front_messages.Spend, lambda told: ledger.spend(told.key_id, told.characters))
        channel.handle(front_messages.NodePage, self._page)
        channel.handle(front_messages.ClosePeer, self._at_owner)
        channel.handle(front_messages.AddCandidates, self._at_owner)
        channel.handle(front_messages.BeginCall, self._where_calls_run)
        channel.handle(front_messages.DescribeAgent, self._where_calls_run)

    def lose(self, front: int) -> None:
        """A front is gone: nothing of it counts any more, but what its counters have shown. Idempotent."""
        self.for_calls.discard(front)
        if self._channels.pop(front, None) is not None:
            self.ledger.lose(front)
            self._pages.lose(front)
            self._up.labels(front).set(0)

    def _tell_free_at(self, key_id: str, at: float) -> None:
        for channel in self._channels.values():
            channel.tell(front_messages.FreeAt(key_id, at))

    async def _at_owner(self, question: front_messages.ForOwner) -> None:
        front = front_of(question.session_id)
        channel = None if front is None else self._channels.get(front)
        if channel is None:
            raise BadMessage(NO_SESSION)
        await channel.ask(question, OTHERS_S)

    async def _where_calls_run(self, question: front_messages.Question[A]) -> A:
        if not self.for_calls:
            raise AtCapacity("the agent is restarting: try again", retry_after_ms=RETRY_MS)
        front = min(self.for_calls, key=lambda front: self.ledger.counts.taken("calls", front))
        return await self._channels[front].ask(question, OTHERS_S)

    async def _page(self, _: front_messages.NodePage) -> str:
        """All that wait for one get the same: with many keys it takes longer to make than to ask for."""
        asked_at = time.monotonic()
        async with self._making:
            if self._page_of[1] <= asked_at:
                began = time.monotonic()
                await asyncio.gather(*(self._look(front, channel) for front, channel in self._channels.items()))
                self._page_of = await asyncio.to_thread(self._pages.merged, self._registry), began
            return self._page_of[0]

    async def _look(self, front: int, channel: Channel) -> None:
        """Take a front's metrics; without an answer its last ones count."""
        page = None
        with contextlib.suppress(SpeechError):
            page = await asyncio.to_thread(read, await channel.ask(front_messages.FrontPage(), FRONT_PAGE_S))
        if self._channels.get(front) is channel:
            self._up.labels(front).set(page is not None)
            if page is not None:
                self._pages.take(front, page)
