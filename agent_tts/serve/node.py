"""The state that all routes of a node share."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from secrets import token_hex
from typing import Any, ParamSpec, Protocol, TypeVar

from agent_tts.config.settings import Settings
from agent_tts.options import SpeechOptions
from agent_tts.protocol.options import MIN_LEAD_MS, SessionConfig
from agent_tts.serve.access.fair_queue import FairQueue
from agent_tts.serve.access.guard import Client, Guard
from agent_tts.serve.access.supervisor_client import SupervisorClient
from agent_tts.serve.dictionaries import Dictionaries
from agent_tts.serve.telemetry.metrics import Metrics
from agent_tts.speech.audio.manifest import ManifestSigner
from agent_tts.speech.audio.packet_clock import PacketClock
from agent_tts.speech.service import SpeechService
from agent_tts.system.threads import computing
from agent_tts.voices.enroll import Enrolment

P = ParamSpec("P")
T = TypeVar("T")

RELIEF_S = 1.0
RELIEVED_SHARE = 20
LESS = 0.05  # of all slots: a node that was full gets new callers again when so many fewer are in use


class HighWater:
    """A mark of the slots in use, with hysteresis: a load balancer does not see a node flap with each utterance."""

    was_over = False  # at the last look

    def over(self, used: float, share: float) -> bool:
        """Whether a node is too full for new callers, with `used` of all slots in use.

        `share` of all slots, in (0, 1], is the mark; at 1 a node is never too full: who waits is told `at_capacity`.
        """
        self.was_over = share < 1 and used >= (share - LESS if self.was_over else share)
        return self.was_over


class Aside:
    """Threads for work that takes milliseconds or waits for a disk; only so many of the node's do it at once.

    Args:
        lock: is held while it is done.
    """

    def __init__(self, places: int, lock: AbstractContextManager[object] | None = None) -> None:
        self._places = asyncio.Semaphore(places)
        self._lock = lock or nullcontext()

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`, which has its turn after what came before. Cancelling it only ends the wait."""
        await self._places.acquire()

        def locked() -> T:
            with self._lock:
                return work(*args, **kwargs)

        working = asyncio.get_running_loop().run_in_executor(None, locked)
        working.add_done_callback(self._end)
        return await asyncio.shield(working)

    def _end(self, working: asyncio.Future[Any]) -> None:
        """Work has ended, which nobody may wait for any more."""
        if not working.cancelled():
            working.exception()  # it counts as seen
        self._places.release()


class OpenSession(Protocol):
    """A protocol session, as the node sees it."""

    def drain(self) -> None:
        """Refuse new contexts; ask to be closed when the open ones have finished."""

    @property
    def idle_since(self) -> float | None:
        """Monotonic time from which on it may be asked to move; None if it speaks, or is not to be asked."""

    def relieve(self) -> None:
        """Ask the client to go to another node."""


class OpenPeer(Protocol):
    """A WebRTC peer, as the node sees it."""

    client: Client

    async def close(self) -> None:
        """Close it and wait until all its tasks have ended. Idempotent."""

    async def wait_closed(self) -> None:
        """Wait until it has closed for a reason of its own."""


@dataclass(slots=True)
class Node:
    """One running node."""

    settings: Settings
    service: SpeechService
    guard: Guard
    metrics: Metrics
    # What it is a front of; None where it is the only one.
    supervisor: SupervisorClient | None = None
    # Signs files that a request wants signed; None without a certificate.
    signer: ManifestSigner | None = None
    # Connections, responses and API keys share the event loop in it.
    fair_queue: FairQueue = field(default_factory=FairQueue)
    # Where long bodies are parsed. Where dictionaries are read, which waits for their folder; and where they are
    # changed, which waits for other processes.
    computing: Aside = field(default_factory=partial(Aside, 1, computing))
    reading: Aside = field(default_factory=partial(Aside, 2))
    storing: Aside = field(default_factory=partial(Aside, 2))
    # Open protocol sessions of all transports, and open WebRTC peers by session id. Each adds and removes itself.
    sessions: set[OpenSession] = field(default_factory=set)
    peers: dict[str, OpenPeer] = field(default_factory=dict)
    # When the packets of all peers leave.
    packet_clock: PacketClock = field(default_factory=PacketClock)
    # Makes voices for the library; None before the first voice. Owned by `routes.voices`.
    enrolment: Enrolment | None = None
    dictionaries: Dictionaries = field(init=False)
    # When idle sessions may be asked to move again.
    _relief_at: float = 0.0
    high_water: HighWater = field(default_factory=HighWater)

    def __post_init__(self) -> None:
        """Raises `SettingsError` if its dictionaries have no folder."""
        self.dictionaries = Dictionaries.of(self.settings.dictionaries)
        self.metrics.usage.budget = self.guard

    def unpaced(self, fields: dict[str, Any]) -> SpeechOptions:
        """The options of a whole text by the fields of a session, over the node's settings; raises as `merged` does."""
        config = SessionConfig(lead_ms=None, normalize=self.settings.normalize)
        return config.merged(fields, MIN_LEAD_MS).options()

    def is_full(self) -> bool:
        """Whether it is above `limits.ready_share`; then it asks idle sessions to move, the longest idle first.

        It asks one in `RELIEVED_SHARE` of all at most, once in `RELIEF_S`: other nodes get no wave of connections.
        """
        full = self.high_water.over(self.service.used, self.settings.limits.ready_share)
        now = time.monotonic()
        if full and now >= self._relief_at:
            self._relief_at = now + RELIEF_S
            idle = [(since, session) for session in self.sessions if (since := session.idle_since) is not None]
            most = max(1, len(self.sessions) // RELIEVED_SHARE)
            for _, session in heapq.nsmallest(most, idle, key=itemgetter(0)):
                session.relieve()
        return full

    def session_id(self) -> str:
        """A new id, `NODE.FRONT-RANDOM`, which nobody can guess and which tells others whose the session is.

        Without `fleet.node` the first part is not there, with one front the second.
        """
        node = "" if self.settings.fleet.node is None else f"{self.settings.fleet.node}."
        front = "" if self.supervisor is None else f"{self.supervisor.number}-"
        return f"{node}{front}{token_hex(8)}"
