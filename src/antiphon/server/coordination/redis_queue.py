"""The queue of an upstream's shared slots in Lua: who is next, who gives way, and how a slot is granted.

Owns what `server.fairness` is in Python, with the same numbers; a test drives both with the same operations.
A part of each of `redis_scripts`' scripts, behind their names and what they read: it stands alone nowhere.
"""

from __future__ import annotations

from typing import Final

QUEUE: Final = r"""
-- Who is next of a share: a background request that has seen many others come is like any other.
local function first(share)
  local function head(from, to)
    return call('ZRANGEBYLEX', queue, '[' .. share .. from, '(' .. share .. to, 'LIMIT', 0, 1)[1]
  end
  local urgent, other = head('0', '1'), head('1', '2')
  local function came(member) return tonumber(string.sub(member, 18, 31)) end
  if not urgent or (other and came(other) + PATIENCE < came(urgent)) then return other end
  return urgent
end

-- Who uses less than its part of the slots, then whose turn is first, then whose line began first.
local function next_share(used)
  local users, all_of_them = 0, 1000 * call('ZCARD', turns)
  local function waiting(share) return call('HEXISTS', lines, share) == 1 end
  for share, _ in pairs(used) do
    users = users + 1
    if not waiting(share) then all_of_them = all_of_them + 1000 end
  end
  local heavy = call('HGETALL', weights)
  for at = 1, #heavy, 2 do
    if used[heavy[at]] or waiting(heavy[at]) then
      all_of_them = all_of_them + whole(tonumber(heavy[at + 1])) - 1000
    end
  end
  -- Only who uses some can have its part: among one more than those are there is one who has not.
  local earliest = call('ZRANGE', turns, 0, users)
  for _, line in ipairs(earliest) do
    local share = string.sub(line, 15)
    if not used[share] or used[share] * all_of_them < limit * whole(weight(share)) then return share end
  end
  return earliest[1] and string.sub(earliest[1], 15)
end

local function hold(key, share, expires)
  forget(key)
  call('ZADD', leases, expires, key)
  call('HSET', shares, key, share)
end

local function serve(key, share)
  hold(key, share, call('ZSCORE', gateways, of(key)))
  local was = turn()
  local its_due = math.max(due(share), was - TURN)
  if its_due > was then call('HSET', meta, 'turn', string.format('%.0f', its_due)) end
  local its_next = its_due + step(weight(share))
  call('ZADD', served, its_next, share)
  local line = call('HGET', lines, share)
  if line then call('ZADD', turns, its_next, line) end
  if call('ZCARD', served) > REMEMBERED then
    for _, other in ipairs(call('ZRANGEBYSCORE', served, '-inf', math.max(was, its_due))) do
      if call('HEXISTS', lines, other) == 0 then call('ZREM', served, other) end
    end
    call('ZREMRANGEBYRANK', served, 0, -REMEMBERED - 1)
  end
  add(granted, key)
end

local function grant()
  if now < calm or call('ZCARD', queue) == 0 then return end
  local free = limit - call('ZCARD', leases)
  if free <= 0 then return end
  local used = {}
  for _, share in ipairs(call('HVALS', shares)) do used[share] = (used[share] or 0) + 1 end
  while free > 0 do
    local share = next_share(used)
    if not share then return end
    serve(string.sub(first(share), 32), share)
    used[share] = (used[share] or 0) + 1
    free = free - 1
  end
end

-- Who gives way to a newcomer of this share, if anybody does.
local function newest_of_longest(than, priority)
  local two = call('ZREVRANGE', loads, 0, 1, 'WITHSCORES')
  local at = two[1] == than and 3 or 1
  local longest = two[at]
  if longest and tonumber(two[at + 1]) > (waits(than) + 1) / weight(than) then
    return call('ZREVRANGEBYLEX', queue, '(' .. longest .. '\255', '[' .. longest, 'LIMIT', 0, 1)[1]
  end
  if priority > 0 then return nil end
  return call('ZREVRANGEBYLEX', queue, '(' .. than .. '2', '[' .. than .. '1', 'LIMIT', 0, 1)[1]
end

local function wait(key, share, its_weight, priority, queue_limit)
  if weight(share) ~= its_weight then
    if its_weight ~= 1 then
      call('HSET', weights, share, string.format('%.17g', its_weight))
    else
      call('HDEL', weights, share)
    end
    weigh_line(share)
  end
  local waiting = call('ZCARD', queue)
  local now_free = waiting == 0 and now >= calm and call('ZCARD', leases) < limit
  if not now_free and waiting >= queue_limit then
    local loser = newest_of_longest(share, priority)
    if not loser then return add(displaced, key) end
    forget(string.sub(loser, 32))
    add(displaced, string.sub(loser, 32))
  end
  local arrival = call('HINCRBY', meta, 'arrivals', 1)
  if waits(share) == 0 then
    local starts = math.max(turn(), due(share))
    call('ZADD', served, starts, share)
    if now_free then return serve(key, share) end
    local line = string.format('%014d', arrival) .. share
    call('HSET', lines, share, line)
    call('ZADD', turns, starts, line)
  end
  local member = share .. priority .. string.format('%014d', arrival) .. key
  call('ZADD', queue, 0, member)
  call('HSET', places, key, member)
  weigh_line(share)
end
"""
