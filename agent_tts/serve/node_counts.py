"""What a node with several fronts is as a whole: its supervisor's answers to the fronts' questions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from agent_tts.config.settings import Settings
from agent_tts.errors import RETRY_MS, AtCapacity, BadMessage, SpeechError
from agent_tts.ipc.channel import Channel
from agent_tts.ipc.front_messages import (
    AddCandidates,
    BeginCall,
    Claim,
    ClosePeer,
    DescribeAgent,
    ForOwner,
    FreeAt,
    FrontPage,
    NodePage,
    Question,
    Release,
    Spend,
    TakeRequests,
)
from agent_tts.serve.fleet import Fleet, fleet_of, secret_of
from agent_tts.serve.ledger import Ledger
from agent_tts.serve.supervisor_client import NO_SESSION, OTHERS_S, PAGE_S, front_of
from agent_tts.serve.telemetry.engine_metrics import EngineMetrics
from agent_tts.serve.telemetry.pages import NodePages

A = TypeVar("A")

FRONT_PAGE_S = PAGE_S / 5  # longest wait for the metrics of a front; then its last ones count


class NodeCounts:
    """Counts what the fronts do together, merges their metrics, and brings questions to the front that has a session.

    Args:
        clock: seconds on the machine's monotonic clock, as that of the fronts.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ledger = Ledger(settings)
        # Of the node's one-time tokens, in hex; for each front.
        self.token_secret = secret_of(settings.fleet).hex()
        self.fleet = fleet_of(settings.fleet, self._ledger, clock, self._tell_free_at)
        # Of the fronts that run, by number.
        self._channels: dict[int, Channel] = {}
        self._for_calls: set[int] = set()  # of them, those that run calls for others
        registry = self._registry = CollectorRegistry()
        # Observes the node's engines.
        self.engines = EngineMetrics(registry)
        up = "Whether it answers; if not, its last metrics count."
        self._up = Gauge("agent_tts_front_up", up, ["front"], registry=registry)
        self._starts = Counter("agent_tts_front_starts", "Front processes started.", ["front"], registry=registry)
        if self.fleet is not None:
            self.fleet.show(registry)
        self._pages = NodePages()
        # Held while a page is made.
        self._making = asyncio.Lock()

    def configure(self, settings: Settings) -> None:
        """Take the limits of these settings. What is open stays open."""
        self._ledger.configure(settings)

    @property
    def sessions(self) -> int:
        """Sessions and requests admitted now, over all fronts."""
        return self._ledger.sessions

    def attach(self, front: int, channel: Channel) -> None:
        """A front process has been started; its first message has not been read. `lose` ends this."""
        self._channels[front] = channel
        self._starts.labels(front).inc()
        self._up.labels(front).set(1)
        channel.handle(Claim, partial(self._admit, front))
        channel.handle(Release, partial(self._release, front))
        channel.handle(TakeRequests, self._take_requests)
        channel.handle(Spend, self._spend)
        channel.handle(NodePage, self._page)
        channel.handle(ClosePeer, self._at_owner)
        channel.handle(AddCandidates, self._at_owner)
        channel.handle(BeginCall, self._where_calls_run)
        channel.handle(DescribeAgent, self._where_calls_run)

    def take_calls(self, front: int) -> None:
        """A front is ready to run the calls that others do not run."""
        self._for_calls.add(front)

    def lose(self, front: int) -> None:
        """A front is gone: nothing of it counts any more, but what its counters have shown. Idempotent."""
        self._for_calls.discard(front)
        if self._channels.pop(front, None) is not None:
            self._ledger.lose(front)
            if self.fleet is not None:
                self.fleet.lose(front)
            self._pages.lose(front)
            self._up.labels(front).set(0)

    def _admit(self, front: int, claim: Claim) -> int | Coroutine[Any, Any, int]:
        owner = self._ledger.admit(front, claim, self._clock())
        return owner if self.fleet is None else self._admit_in(self.fleet, front, claim, owner)

    async def _admit_in(self, fleet: Fleet, front: int, claim: Claim, owner: int) -> int:
        await fleet.admit(front, claim)
        return owner

    def _release(self, front: int, message: Release) -> None:
        if self.fleet is not None:
            self.fleet.release(front, message.number, unused=message.unused)
        self._ledger.release(front, message.number, self._clock(), unused=message.unused)

    def _take_requests(self, message: TakeRequests) -> int:
        return self._ledger.requests(message.key_id, self._clock(), several=True)

    def _spend(self, message: Spend) -> None:
        """Count characters; all fronts are told when that uses up what the key may."""
        now = self._clock()
        if (at := self._ledger.spend(message.key_id, message.characters, now)) > now:
            self._tell_free_at(message.key_id, at)
        if self.fleet is not None:
            self.fleet.spend(message.key_id, message.characters)

    def _tell_free_at(self, key_id: str, at: float) -> None:
        if self.fleet is not None:
            at = max(at, self.fleet.free_at(key_id))
        for channel in self._channels.values():
            channel.tell(FreeAt(key_id, at))

    async def _at_owner(self, question: ForOwner) -> None:
        front = front_of(question.session_id)
        channel = None if front is None else self._channels.get(front)
        if channel is None:
            raise BadMessage(NO_SESSION)
        await channel.ask(question, OTHERS_S)

    async def _where_calls_run(self, question: Question[A]) -> A:
        if not self._for_calls:
            raise AtCapacity("the agent is restarting: try again", retry_after_ms=RETRY_MS)
        front = min(self._for_calls, key=lambda front: self._ledger.taken("calls", front))
        return await self._channels[front].ask(question, OTHERS_S)

    async def _page(self, _: NodePage) -> str:
        async with self._making:
            await asyncio.gather(*(self._look(front, channel) for front, channel in self._channels.items()))
            return self._pages.merged(self._registry)

    async def _look(self, front: int, channel: Channel) -> None:
        """Take a front's metrics; without an answer its last ones count."""
        page = None
        with contextlib.suppress(SpeechError):
            page = await channel.ask(FrontPage(), FRONT_PAGE_S)
        if self._channels.get(front) is channel:
            self._up.labels(front).set(page is not None)
            if page is not None:
                self._pages.take(front, page)
