"""The counts of a fleet in Redis: each exchange is one script, which Redis runs alone, by its own clock.

`fleet_counts.py` says the same in Python.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from agent_tts.serve.access.fleet_counts import LEASE_MS, Batch

# Keys: u:TOKEN a used token; s:GROUP sessions by node, "COUNT UNTIL"; c:KEY characters left, and when that was.
_SCRIPT = """
local prefix, batch, lease = KEYS[1], cjson.decode(ARGV[1]), tonumber(ARGV[2])
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
  left = left - spent[2]
  redis.call('HSET', key, 'left', string.format('%.6f', left), 'at', string.format('%.0f', now))
  redis.call('PEXPIRE', key, string.format('%.0f', (spent[3] - left) / rate + 1000))
  waits[i] = math.ceil(math.max(0, -left / rate))
end
return {claims, waits}
"""


class RedisCounts:
    """The counts in a Redis server, under a prefix. Raises `ValueError` for an address that is none."""

    def __init__(self, address: str, prefix: str) -> None:
        from redis.asyncio import Redis

        self._redis: Any = Redis.from_url(address, socket_connect_timeout=1, socket_timeout=1, max_connections=2)
        self._script = self._redis.register_script(_SCRIPT)
        self._prefix = prefix

    async def exchange(self, batch: Batch) -> tuple[list[int], list[int]]:
        """See `SharedCounts`."""
        claims, waits_ms = await self._script(keys=[self._prefix], args=[json.dumps(asdict(batch)), LEASE_MS])
        return claims, waits_ms

    async def close(self) -> None:
        """See `SharedCounts`."""
        await self._redis.aclose()
