"""What a front asks of its node's counts, which are in the same process or in the supervisor's."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from agent_tts.config.settings import Settings
from agent_tts.ipc.front_messages import Claim
from agent_tts.serve.access.fleet import Fleet, fleet_of, secret_of
from agent_tts.serve.access.ledger import Ledger


class NodeLedger:
    """What a node counts for its fronts, beside what its fleet does; with one front, its guard's ledger.

    Args:
        clock: seconds on the machine's monotonic clock, as that of the fronts.
        tell: called with a key that has used up its characters, and when it has some again.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str, float], None] = lambda key_id, at: None,
    ) -> None:
        self.counts = Ledger(settings)
        self.secret = secret_of(settings.fleet)
        self.fleet = fleet_of(settings.fleet, self.counts, clock, self._tell_free_at)
        self._clock = clock
        self._tell = tell

    def configure(self, settings: Settings) -> None:
        self.counts.configure(settings)

    async def admit(self, claim: Claim) -> int:
        """Grant a claim until its `release`; returns its owner. After an error or a cancellation nothing is counted.

        Raises the errors of `Ledger.admit`, and `AtCapacity` without an answer.
        """
        granted = self.grant(0, claim)
        return granted if isinstance(granted, int) else await granted

    def grant(self, front: int, claim: Claim) -> int | Coroutine[Any, Any, int]:
        """As `admit`, for one of several fronts. It counts at once: a release may come before this is awaited."""
        owner = self.counts.admit(front, claim, self._clock())
        return owner if self.fleet is None else self._grant_in(self.fleet, front, claim, owner)

    async def _grant_in(self, fleet: Fleet, front: int, claim: Claim, owner: int) -> int:
        await fleet.admit(front, claim)
        return owner

    def release(self, number: int, front: int = 0, *, unused: bool = False) -> None:
        """See `Ledger.release`."""
        if self.fleet is not None:
            self.fleet.release(front, number, unused=unused)
        self.counts.release(front, number, self._clock(), unused=unused)

    def lose(self, front: int) -> None:
        """A front is gone: all that it was granted ends."""
        self.counts.lose(front)
        if self.fleet is not None:
            self.fleet.lose(front)

    async def request(self, key_id: str | None) -> None:
        """Count a request of a key. Raises `RateLimited`, and `AtCapacity` without an answer. Cancelling it is safe."""
        self.counts.requests(key_id, self._clock(), several=False)

    def requests(self, key_id: str | None) -> int:
        """As many requests of a key as a front takes at a time, see `Ledger.requests`."""
        return self.counts.requests(key_id, self._clock(), several=True)

    def spend(self, key_id: str, characters: int) -> None:
        """Count characters of a key that has a limit."""
        now = self._clock()
        if (at := self.counts.spend(key_id, characters, now)) > now:
            self._tell_free_at(key_id, at)
        if self.fleet is not None:
            self.fleet.spend(key_id, characters)

    def free_at(self, key_id: str) -> float:
        """From when on, in seconds, a key has characters left; the past if it has some now."""
        return self._latest(key_id, self.counts.spend(key_id, 0, self._clock()))

    def _tell_free_at(self, key_id: str, at: float) -> None:
        self._tell(key_id, self._latest(key_id, at))

    def _latest(self, key_id: str, at: float) -> float:
        return at if self.fleet is None else max(at, self.fleet.free_at(key_id))
