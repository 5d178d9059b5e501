"""A node's share in what a fleet counts: used tokens, sessions and characters of keys, in a store such as Redis.

A node tells and asks everything in one exchange at a time, which carries all that waits: claims at once, characters and
ends of sessions within `FLUSH_S`. Of its sessions it tells how many it has, not what has changed, so a lost exchange is
made good by the next one; what a node told counts for half a minute. No caller waits longer than two exchanges.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from loguru import logger
from prometheus_client import CollectorRegistry, Gauge

from agent_tts.config.settings import FleetSettings
from agent_tts.errors import AtCapacity, SettingsError, Unauthorized
from agent_tts.ipc.front_messages import Claim, Token
from agent_tts.serve.access.fleet_counts import FULL, USED, Batch, RedisCounts, SharedCounts
from agent_tts.serve.access.fleet_socket import SCHEME, SocketCounts
from agent_tts.serve.access.keys import SECRET_BYTES
from agent_tts.serve.access.ledger import NO_TOKEN, Ledger

FLUSH_S = 0.1  # between exchanges while a key speaks: as old is what a node knows of what others have spoken
WATCH_S = 2.0  # for which a key is asked about after it spoke
RENEW_S = 5.0  # between exchanges of an idle node
ANSWER_S = 0.4  # longest exchange: a front waits for its claim for 1 s
AGAIN_S = 1.0  # before the next one after a failure


def secret_of(settings: FleetSettings) -> bytes:
    """What a node signs tokens with: the same on all nodes with the fleet's secret, otherwise its own."""
    if settings.secret is None:
        return secrets.token_bytes(SECRET_BYTES)
    return hashlib.sha256(b"agent-tts fleet" + settings.secret.get_secret_value().encode()).digest()


def fleet_of(
    settings: FleetSettings, ledger: Ledger, clock: Callable[[], float], tell: Callable[[str, float], None]
) -> Fleet | None:
    """The fleet of these settings, if there is one. Raises `SettingsError` if what its store needs is not installed."""
    if settings.ledger is None:
        return None
    address = settings.ledger.get_secret_value()
    try:
        is_socket, prefix = address.startswith(SCHEME), f"agent-tts:{{{secret_of(settings).hex()[:16]}}}:"
        counts: SharedCounts = SocketCounts(address) if is_socket else RedisCounts(address, prefix)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"fleet.ledger: it needs agent-tts[redis] and a right address: {error}") from None
    return Fleet(ledger, counts, settings.ledger_failure == "closed", clock, tell)


_Waiting = tuple[tuple[str, int] | None, Token | None, asyncio.Future[int | None]]


@dataclass(eq=False)
class Fleet:
    """A node's share in the counts of its fleet, beside its own ledger."""

    ledger: Ledger
    counts: SharedCounts
    closed: bool  # refuse what cannot be counted while the store is away; otherwise the node's own counts limit it
    clock: Callable[[], float]  # that of the ledger, in seconds
    tell: Callable[[str, float], None]  # called with a key that has used up its characters, and when it has some again

    def __post_init__(self) -> None:
        self._node = secrets.token_hex(8)
        # Claims that wait for an exchange: the group and its limit, the token, and the answer; None without one.
        self._claims: list[_Waiting] = []
        # What the store does not know yet.
        self._spent: Counter[str] = Counter()
        self._freed: list[str] = []
        # Tokens that the store has granted to claims, by front and number.
        self._tokens: dict[tuple[int, int], str] = {}
        # Keys that spoke lately: until when they are asked about.
        self._watched: dict[str, float] = {}
        # Keys have characters left from then on.
        self._free_at: dict[str, float] = {}
        # Open sessions that the store knows of, by group; and when all are told again.
        self._told: dict[str, int] = {}
        self._renew_at = -math.inf
        # Set when an exchange is due before its time; and whether the last one failed.
        self._due = asyncio.Event()
        self.away = False

    def show(self, registry: CollectorRegistry) -> None:
        """Have its state in the metrics of a node."""
        up = "Whether the fleet's ledger answers; if not, fleet.ledger_failure says what is granted."
        Gauge("agent_tts_fleet_ledger_up", up, registry=registry).set_function(lambda: not self.away)

    async def run(self) -> None:
        """Exchange until it is cancelled."""
        try:
            while True:
                await self._exchange()
                if self.away:
                    await asyncio.sleep(AGAIN_S)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_S if self._watched or self._freed else RENEW_S):
                        await self._due.wait()
                self._due.clear()
        finally:
            self.away = True
            self._answer(self._claims, None)
            await self.counts.close()

    async def admit(self, front: int, claim: Claim) -> None:
        """Have the fleet grant what the ledger has granted to a front. After an error or a cancellation it is released.

        Raises:
            AtCapacity: at a limit of the key; or the store is away, and what cannot be counted is refused.
            Unauthorized: the token was used on another node.
        """
        group = self.ledger.shared(front, claim.number)
        if group is None and claim.token is None:
            return
        outcome, asked = None, not self.away
        try:
            if asked:
                answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
                self._claims.append((group and group[:2], claim.token, answer))
                self._due.set()
                outcome = await answer
            if outcome == FULL and group is not None:
                why = f"{group[1]} sessions are open in the fleet {group[2]}, or try again"
                raise AtCapacity(why, retry_after_ms=1_000)
            if outcome == USED:
                raise Unauthorized(NO_TOKEN)
            if outcome is None and self.closed:
                why = "the fleet cannot count its sessions now (fleet.ledger_failure: closed): try again"
                raise AtCapacity(why, retry_after_ms=1_000)
        except BaseException:
            if claim.token is not None and asked and outcome not in (FULL, USED):  # the store may have used it up
                self._freed.append(claim.token.id)
            self.ledger.release(front, claim.number, self.clock(), unused=outcome != USED)
            raise
        if claim.token is not None:
            self._tokens[front, claim.number] = claim.token.id
            if not self.ledger.has(front, claim.number):  # given up meanwhile
                self.release(front, claim.number, unused=True)

    def release(self, front: int, number: int, *, unused: bool = False) -> None:
        """A claim of a front ends: before `Ledger.release`."""
        if self.ledger.shared(front, number) is not None:
            self._due.set()
        token = self._tokens.pop((front, number), None)
        if unused and token is not None:
            self._freed.append(token)

    def lose(self, front: int) -> None:
        """A front is gone."""
        self._tokens = {claim: token for claim, token in self._tokens.items() if claim[0] != front}
        self._due.set()

    def spend(self, key_id: str, characters: int) -> None:
        """Count characters of a key that has a limit."""
        self._spent[key_id] += characters
        if key_id not in self._watched:
            self._due.set()
        self._watched[key_id] = self.clock() + WATCH_S

    def free_at(self, key_id: str) -> float:
        """From when on a key has characters left; a moment from now while they cannot be counted and must be."""
        if self.away and self.closed:
            return self.clock() + AGAIN_S
        return self._free_at.get(key_id, -math.inf)

    async def _exchange(self) -> None:
        now = self.clock()
        self._watched = {key: until for key, until in self._watched.items() if until > now or key in self._spent}
        sessions = self.ledger.shared_sessions()
        claims, self._claims = [claim for claim in self._claims if not claim[2].done()], []
        spent, self._spent = self._spent, Counter()
        batch = Batch(self._node, freed=self._freed)
        self._freed = []
        settled = Counter(sessions)  # those that no claim here is about
        settled.subtract(group[0] for group, *_ in claims if group is not None)
        if self._renew_at <= now:
            self._told.clear()
        batch.sessions = {name: count for name, count in settled.items() if count != self._told.get(name)}
        for group, token, _ in claims:
            name, most = group or ("", -1)
            settled[name] += 1
            life_ms = 1 if token is None else max(1, math.ceil((token.expires_at - now) * 1_000))
            batch.claims.append((name, settled[name], most, "" if token is None else token.id, life_ms))
        for key in self._watched:
            if (most_chars := self.ledger.characters_per_minute(key)) is not None:
                batch.spent.append((key, spent[key], most_chars))
        try:
            async with asyncio.timeout(ANSWER_S):
                outcomes, waits_ms = await self.counts.exchange(batch)
            if (len(outcomes), len(waits_ms)) != (len(batch.claims), len(batch.spent)):
                raise ValueError("an answer to another batch")
        except Exception as error:  # noqa: BLE001 - each store has errors of its own
            if not self.away:
                what = "nothing new is granted" if self.closed else "each node counts for itself"
                logger.error("the fleet's ledger is away ({}): {}", type(error).__name__, what)
            self.away = True
            self._spent.update(spent)
            self._freed += batch.freed
            self._told.clear()
            self._answer(claims + self._claims, None)
            self._claims = []
            if self.closed:
                for key in self._watched:
                    self.tell(key, self.free_at(key))
            return
        if self.away:
            logger.info("the fleet's ledger is back")
        self.away = False
        for claim, outcome in zip(claims, outcomes, strict=True):
            self._answer([claim], outcome)
        if not self._told:
            self._renew_at = now + RENEW_S
        # The store has of a group with claims what they were granted; more is open where one was refused.
        self._told.update({name: count for name, count in batch.sessions.items() if sessions.get(name) == count})
        now = self.clock()
        for (key, *_), wait_ms in zip(batch.spent, waits_ms, strict=True):
            before = self._free_at.get(key, -math.inf)
            self._free_at[key] = now + wait_ms / 1_000
            if wait_ms or before > now:
                self.tell(key, self._free_at[key])

    @staticmethod
    def _answer(claims: Iterable[_Waiting], outcome: int | None) -> None:
        for *_, answer in claims:
            if not answer.done():
                answer.set_result(outcome)
