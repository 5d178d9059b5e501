"""What a front gets from its supervisor: the node's counts and metrics, and what other fronts do for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TypeVar

from agent_tts.config.settings import Settings
from agent_tts.errors import RETRY_MS, RateLimited, SpeechError
from agent_tts.ipc.channel import Channel, NoAnswer
from agent_tts.ipc.front_messages import Claim, FreeAt, NodePage, NodeReady, Question, Release, Spend, TakeRequests

ANSWER_S = 1.0  # longest wait for a count; while there is no answer, one question in this time is asked
REFUSED_S = 0.05  # for which a key that sends too many requests is refused without a question
SPEND_S = 0.05  # for which characters are counted before the ledger is told
PAGE_S = 5.0  # longest wait for the node's metrics
OTHERS_S = 10.0  # and for what another front does, such as closing a peer

NO_SESSION = "there is no such session"

A = TypeVar("A")


class SupervisorClient:
    """One front's share of its node; as its guard's ledger it does what `NodeLedger` does.

    Args:
        number: of this front, from 0.
        secret: of the node's tokens.
    """

    def __init__(self, number: int, channel: Channel, secret: bytes) -> None:
        self.number = number
        self.channel = channel
        self.secret = secret
        # Requests that each key may send before the ledger is asked again.
        self._allowed: dict[str | None, int] = {}
        # Keys that send too many: until when they are refused without a question, and how.
        self._refused: dict[str | None, tuple[float, str, int | None]] = {}
        # Characters of keys that the ledger does not know yet; and from when on keys have some again, if they had none.
        self._spent: Counter[str] = Counter()
        self._free_at: dict[str, float] = {}
        channel.handle(FreeAt, self._note_free_at)
        # Set when all fronts of the node have been ready.
        self.node_ready = asyncio.Event()
        channel.handle(NodeReady, lambda _: self.node_ready.set())
        # Whether the last question was not answered, and when the next is asked then: others would only wait in line.
        self._silent = False
        self._ask_at = 0.0

    def configure(self, settings: Settings) -> None:
        self._allowed.clear()
        self._refused.clear()
        self._free_at.clear()

    def spend(self, key_id: str, characters: int) -> None:
        if not self._spent:
            asyncio.get_running_loop().call_later(SPEND_S, self._tell_spent)
        self._spent[key_id] += characters

    def free_at(self, key_id: str) -> float:
        return self._free_at.get(key_id, 0.0)

    def _tell_spent(self) -> None:
        for key_id, characters in self._spent.items():
            self.channel.tell(Spend(key_id, characters))
        self._spent.clear()

    def _note_free_at(self, told: FreeAt) -> None:
        self._free_at[told.key_id] = told.at

    async def admit(self, claim: Claim) -> int:
        self._check_silence()
        try:
            return await self._count(claim)
        except (NoAnswer, asyncio.CancelledError):
            self.channel.tell(Release(claim.number, unused=True))
            raise

    def release(self, number: int) -> None:
        self.channel.tell(Release(number))

    async def request(self, key_id: str | None) -> None:
        if not self._allowed.get(key_id):
            await self._take_requests(key_id)
        self._allowed[key_id] -= 1

    async def counts(self) -> bool:
        """Whether the ledger answers; it is asked only if it did not the last time."""
        if self._silent:
            with contextlib.suppress(SpeechError):
                await self._take_requests(None)
        return not self._silent

    async def page(self) -> str:
        """The metrics of the node, as Prometheus reads them. Raises `NoAnswer`."""
        return await self.channel.ask(NodePage(), PAGE_S)

    def has(self, session_id: str) -> bool:
        """Whether a session would be this front's, by its id."""
        return front_of(session_id) in (None, self.number)

    async def ask(self, question: Question[A]) -> A:
        """Have another front do something: the one that has a session, or one that runs calls.

        Raises its errors, and `NoAnswer`.
        """
        return await self.channel.ask(question, OTHERS_S)

    async def _take_requests(self, key_id: str | None) -> None:
        if (refused := self._refused.get(key_id)) is not None and time.monotonic() < refused[0]:
            raise RateLimited(refused[1], retry_after_ms=refused[2])
        self._check_silence()
        try:
            granted = await self._count(TakeRequests(key_id))
        except RateLimited as error:
            self._refused[key_id] = time.monotonic() + REFUSED_S, error.message, error.retry_after_ms
            raise
        self._allowed[key_id] = self._allowed.get(key_id, 0) + granted

    def _check_silence(self) -> None:
        """Raise `NoAnswer` while the supervisor is silent, except once in `ANSWER_S`."""
        if self._silent and time.monotonic() < self._ask_at:
            raise NoAnswer("the node cannot count its sessions now: try again", retry_after_ms=RETRY_MS)

    async def _count(self, question: Question[A]) -> A:
        """An answer of the ledger, within `ANSWER_S`."""
        self._ask_at = time.monotonic() + ANSWER_S
        try:
            answer = await self.channel.ask(question, ANSWER_S)
        except SpeechError as error:  # a refusal is an answer
            self._silent = isinstance(error, NoAnswer)
            raise
        self._silent = False
        return answer


def front_of(session_id: str) -> int | None:
    """The front of a session, by its id; None if no front gave it."""
    number, dash, _ = session_id.rpartition(".")[2].partition("-")
    return int(number) if dash and number.isdecimal() and len(number) <= 3 else None
