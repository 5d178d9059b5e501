"""What a fleet counts: used tokens, sessions and characters of keys; in one process, or by a script in Redis."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent_tts.serve.token_bucket import TokenBucket

LEASE_MS = 30_000  # after which the sessions of a node that tells nothing end

OK, FULL, USED = range(3)

MAX_DEBT = 3  # minutes in which a key that has spoken more than it may gets no characters


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
        bucket = self._characters.setdefault((key, most), TokenBucket(most / 60_000, most, now_ms))
        return math.ceil(spend(bucket, now_ms, characters, most))


def spend(bucket: TokenBucket, now: float, characters: float, most: int) -> float:
    """Take characters of a key with `most` a minute. Returns the time until it has some, in the bucket's unit."""
    return bucket.take(now, min(characters, bucket.left(now) + MAX_DEBT * most))


_SCRIPT = Path(__file__).with_suffix(".lua")


class RedisCounts(SharedCounts):
    """The counts in a Redis server, under a prefix: each exchange is one script, which runs alone, by Redis' clock.

    Raises `ImportError` without its client, and `ValueError` for an address that is none.
    """

    def __init__(self, address: str, prefix: str) -> None:
        from redis.asyncio import Redis

        self._redis: Any = Redis.from_url(address, socket_connect_timeout=1, socket_timeout=1, max_connections=2)
        self._script = self._redis.register_script(_SCRIPT.read_text("utf-8"))
        self._prefix = prefix

    async def exchange(self, batch: Batch) -> tuple[list[int], list[int]]:
        claims, waits_ms = await self._script(keys=[self._prefix], args=[json.dumps(asdict(batch)), LEASE_MS, MAX_DEBT])
        return claims, waits_ms

    async def close(self) -> None:
        await self._redis.aclose()
