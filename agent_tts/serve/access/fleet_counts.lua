-- It does what `Counts` of fleet_counts.py does.
-- Keys: u:TOKEN a used token; s:GROUP sessions by node, "COUNT UNTIL"; c:KEY characters left, and when that was.
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
