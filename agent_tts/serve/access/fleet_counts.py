"""What a fleet counts: used tokens, sessions and characters of keys; in one process, or by a script in Redis."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
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
        bucket = self._characters.get((key, most))
        if bucket is None:
            bucket = self._characters[key, most] = TokenBucket(most / 60_000, most, now_ms)
        return math.ceil(spend(bucket, now_ms, characters, most))


def spend(bucket: TokenBucket, now: float, characters: float, most: int) -> float:
    """Take characters of a key with `most` a minute. Returns the time until it has some, in the bucket's unit."""
    return bucket.take(now, min(characters, bucket.left(now) + MAX_DEBT * most))


# It does what `Counts` does.
# Keys: u:TOKEN a used token; s:GROUP sessions by node, "COUNT UNTIL"; c:KEY characters left, and when that was.
_SCRIPT = """
local prefix, batch, lease, debt = KEYS[1], cjson.decode(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function keep(group, count)
  local key = prefix .. 's:' .. group
  if count > 0 then
    redis.call('HSET', key, batch.node, count .. ' ' .. string.format('%.0f', now + lease))
    redis.call('PEXPIRE', key, lease)
  else
    redis.call('HDEL', key, batch.node)
  end
end

local function of_others(group)
  local key, sum = prefix .. 's:' .. group, 0
  local nodes = redis.call('HGETALL', key)
  for i = 1, #nodes, 2 do
    local count, ends = string.match(nodes[i + 1], '(%d+) (%d+)')
    if tonumber(ends) <= now then
      redis.call('HDEL', key, nodes[i])
    elseif nodes[i] ~= batch.node then
      sum = sum + tonumber(count)
    end
  end
  return sum
end

for _, token in ipairs(batch.freed) do redis.call('DEL', prefix .. 'u:' .. token) end
for group, count in pairs(batch.sessions) do keep(group, count) end

local claims, waits = {}, {}
for i, claim in ipairs(batch.claims) do
  local group, own, most, token, life = unpack(claim)
  claims[i] = 0
  if most >= 0 and of_others(group) + own > most then
    claims[i] = 1
  elseif token ~= '' and not redis.call('SET', prefix .. 'u:' .. token, 1, 'PX', life, 'NX') then
    claims[i] = 2
  elseif most >= 0 then
    keep(group, own)
  end
end

for i, spent in ipairs(batch.spent) do
  local key, rate = prefix .. 'c:' .. spent[1], spent[3] / 60000
  local was = redis.call('HMGET', key, 'left', 'at')
  local left = spent[3]
  if was[1] then left = math.min(left, tonumber(was[1]) + (now - tonumber(was[2])) * rate) end
  left = math.max(left - spent[2], -debt * spent[3])
  redis.call('HSET', key, 'left', string.format('%.6f', left), 'at', string.format('%.0f', now))
  redis.call('PEXPIRE', key, string.format('%.0f', (spent[3] - left) / rate + 1000))
  waits[i] = math.ceil(math.max(0, -left / rate))
end
return {claims, waits}
"""


class RedisCounts:
    """The counts in a Redis server, under a prefix: each exchange is one script, which runs alone, by Redis' clock.

    Raises `ImportError` without its client, and `ValueError` for an address that is none.
    """

    def __init__(self, address: str, prefix: str) -> None:
        from redis.asyncio import Redis

        self._redis: Any = Redis.from_url(address, socket_connect_timeout=1, socket_timeout=1, max_connections=2)
        self._script = self._redis.register_script(_SCRIPT)
        self._prefix = prefix

    async def exchange(self, batch: Batch) -> tuple[list[int], list[int]]:
        """See `SharedCounts`."""
        claims, waits_ms = await self._script(keys=[self._prefix], args=[json.dumps(asdict(batch)), LEASE_MS, MAX_DEBT])
        return claims, waits_ms

    async def close(self) -> None:
        """See `SharedCounts`."""
        await self._redis.aclose()
