"""What a fleet counts: used tokens, sessions and characters of keys. Pure; for an actor, and to compare others with."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from agent_tts.serve.token_bucket import TokenBucket

LEASE_MS = 30_000  # after which the sessions of a node that tells nothing end

OK, FULL, USED = range(3)


@dataclass(slots=True)
class Batch:
    """What a node tells and asks in one exchange. A group is a key, or the tokens of a key."""

    node: str
    # (group or "", its sessions on this node with this one, most in the fleet or -1, token or "", its life in ms)
    claims: list[tuple[str, int, int, str, int]] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)  # on this node, by group
    spent: list[tuple[str, int, int]] = field(default_factory=list)  # key, characters, most in a minute
    freed: list[str] = field(default_factory=list)  # tokens that are good again


class SharedCounts(Protocol):
    """Where a fleet counts."""

    async def exchange(self, batch: Batch) -> tuple[list[int], list[int]]:
        """OK, FULL or USED for each claim; for each key in `spent` the ms until it has characters. Safe to cancel."""

    async def close(self) -> None:
        """Give its connections back."""


class Counts:
    """The counts of a fleet in one process. The caller passes the time, in milliseconds."""

    def __init__(self) -> None:
        # When each used token expires; the count of each node and until when it holds, by group; characters by key.
        self._used: dict[str, float] = {}
        self._sessions: defaultdict[str, dict[str, tuple[int, float]]] = defaultdict(dict)
        self._characters: dict[tuple[str, int], TokenBucket] = {}

    def exchange(self, batch: Batch, now_ms: float) -> tuple[list[int], list[int]]:
        """See `SharedCounts`."""
        self._used = {token: until for token, until in self._used.items() if until > now_ms}
        for token in batch.freed:
            self._used.pop(token, None)
        for group, count in batch.sessions.items():
            self._sessions[group][batch.node] = count, now_ms + LEASE_MS
        outcomes = [self._claim(batch.node, now_ms, *claim) for claim in batch.claims]
        return outcomes, [self._spend(now_ms, *spent) for spent in batch.spent]

    def _claim(self, node: str, now_ms: float, group: str, own: int, most: int, token: str, life_ms: int) -> int:
        others = sum(
            count for other, (count, until) in self._sessions[group].items() if other != node and until > now_ms
        )
        if most >= 0 and others + own > most:
            return FULL
        if token:
            if token in self._used:
                return USED
            self._used[token] = now_ms + life_ms
        if most >= 0:
            self._sessions[group][node] = own, now_ms + LEASE_MS
        return OK

    def _spend(self, now_ms: float, key: str, characters: int, most: int) -> int:
        bucket = self._characters.get((key, most))
        if bucket is None:
            bucket = self._characters[key, most] = TokenBucket(most / 60_000, most, now_ms)
        return math.ceil(bucket.take(now_ms, characters))
