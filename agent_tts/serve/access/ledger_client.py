"""A front's way to the ledger of its node: in the same process, or in the supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from agent_tts.config.settings import Fleet as FleetSettings
from agent_tts.config.settings import Settings
from agent_tts.ipc.front_messages import Claim
from agent_tts.serve.access.fleet import fleet_of, secret_of
from agent_tts.serve.access.ledger import Ledger

NO_FLEET = FleetSettings()


class LedgerClient(Protocol):
    """The ledger, as a front sees it."""

    secret: bytes  # of the node's tokens

    def configure(self, settings: Settings) -> None:
        """Take the limits of these settings, as far as they are this front's to set."""

    async def admit(self, claim: Claim) -> int:
        """Grant a claim until its `release`; returns its owner. After an error or a cancellation nothing is counted.

        Raises the errors of `Ledger.admit`, and `AtCapacity` without an answer.
        """

    def release(self, number: int) -> None:
        """End what a claim was granted, by its number."""

    async def request(self, key_id: str | None) -> None:
        """Count a request of a key. Raises `RateLimited`, and `AtCapacity` without an answer. Cancelling it is safe."""

    def spend(self, key_id: str, characters: int) -> None:
        """Count characters of a key that has a limit."""

    def free_at(self, key_id: str) -> float:
        """From when on, in seconds, a key has characters left; the past if it has some now."""


class OwnLedger:
    """The ledger of a node with one front."""

    def __init__(
        self, ledger: Ledger, clock: Callable[[], float] = time.monotonic, fleet: FleetSettings = NO_FLEET
    ) -> None:
        self.ledger = ledger
        self.secret = secret_of(fleet)
        self.fleet = fleet_of(fleet, ledger, clock)
        self._clock = clock

    def configure(self, settings: Settings) -> None:
        self.ledger.configure(settings)

    def spend(self, key_id: str, characters: int) -> None:
        self.ledger.spend(key_id, characters, self._clock())
        if self.fleet is not None:
            self.fleet.spend(key_id, characters)

    def free_at(self, key_id: str) -> float:
        own = self.ledger.spend(key_id, 0, self._clock())
        return own if self.fleet is None else max(own, self.fleet.free_at(key_id))

    async def admit(self, claim: Claim) -> int:
        owner = self.ledger.admit(0, claim, self._clock())
        if self.fleet is not None:
            await self.fleet.admit(0, claim)
        return owner

    def release(self, number: int) -> None:
        if self.fleet is not None:
            self.fleet.release(0, number)
        self.ledger.release(0, number, self._clock())

    async def request(self, key_id: str | None) -> None:
        self.ledger.requests(key_id, self._clock(), several=False)
