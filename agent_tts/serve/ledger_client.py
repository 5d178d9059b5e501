"""A front's way to the ledger of its node: in the same process, or in the supervisor."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Protocol

from agent_tts.config.settings import Settings
from agent_tts.ipc.front_messages import Claim
from agent_tts.serve.ledger import Ledger
from agent_tts.serve.tokens import SECRET_BYTES


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


class OwnLedger:
    """The ledger of a node with one front."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self.ledger = ledger
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self._clock = clock

    def configure(self, settings: Settings) -> None:
        self.ledger.configure(settings)

    async def admit(self, claim: Claim) -> int:
        return self.ledger.admit(0, claim, self._clock())

    def release(self, number: int) -> None:
        self.ledger.release(0, number, self._clock())

    async def request(self, key_id: str | None) -> None:
        self.ledger.requests(key_id, self._clock(), several=False)
