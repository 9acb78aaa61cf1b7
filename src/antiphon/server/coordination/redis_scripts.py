"""The operations of `protocol` as Lua scripts for Valkey and Redis, one for each.

Owns the data in the server, and nothing else; who is next is `redis_queue`'s. `room` has the same rules in
Python, with the reasons. Each script is atomic and takes its time from the server. All keys of an upstream
share one hash tag, so that they lie in one slot of a cluster.

Keys of one upstream (KEYS, in this order):

    meta      hash   born, made, seen, calm, limit, limit_set, arrivals, turn
    gateways  zset   gateway -> when it expires (milliseconds)
    epochs    hash   gateway -> epoch
    actives   hash   gateway -> leases that have begun to answer
    leases    zset   key -> when it expires (as its gateway does; later where it lingers)
    shares    hash   key of a lease -> share
    queue     zset   share (16 digits) priority (1) arrival (14) key, all with score 0: ordered as text
    places    hash   key that waits -> its member of the queue
    served    zset   share -> when its next turn is
    weights   hash   share -> weight, where it is not 1
    lines     hash   share that waits -> its member of `turns`
    turns     zset   arrival (14) share -> when the turn is of a share that waits
    loads     zset   share that waits -> how many of it do, by its weight

ARGV: gateway, epoch, TTL (milliseconds), the operation (JSON), how long calm lasts after an empty start
(milliseconds), the prefix of the gateways' channels.
"""

from __future__ import annotations

from typing import Final

from antiphon.server.coordination.redis_queue import QUEUE

KEY_NAMES: Final = (
    "meta",
    "gateways",
    "epochs",
    "actives",
    "leases",
    "shares",
    "queue",
    "places",
    "served",
    "weights",
    "lines",
    "turns",
    "loads",
)

_PRELUDE: Final = r"""
local meta, gateways, epochs, actives, leases, shares, queue, places, served, weights, lines, turns, loads =
  unpack(KEYS)
local me, epoch, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local said, empty_calm, channels = cjson.decode(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local born, made, seen, calm, limit, limit_set =
  unpack(call('HMGET', meta, 'born', 'made', 'seen', 'calm', 'limit', 'limit_set'))
made, seen = tonumber(made or now), tonumber(seen or now)
calm, limit, limit_set = tonumber(calm or 0), tonumber(limit or 0), tonumber(limit_set or 0)
local granted, displaced, lost, standing = {}, {}, {}, false

local function of(key) return string.match(key, '^[^:]*') end

local function add(list, key)
  local gateway = of(key)
  list[gateway] = list[gateway] or {}
  table.insert(list[gateway], key)
end

-- As in `fairness`, with the same numbers.
local TURN, PATIENCE, REMEMBERED = 720720, 64, 1024
local function step(its_weight) return math.max(1, math.floor(TURN / its_weight + 0.5)) end
local function whole(its_weight) return math.max(1, math.floor(its_weight * 1000 + 0.5)) end
local function turn() return tonumber(call('HGET', meta, 'turn') or 0) end
local function due(share) return tonumber(call('ZSCORE', served, share) or 0) end
local function weight(share) return tonumber(call('HGET', weights, share) or 1) end
local function waits(share) return call('ZLEXCOUNT', queue, '[' .. share, '(' .. share .. '\255') end

local function weigh_line(share)
  local size = waits(share)
  if size > 0 then return call('ZADD', loads, size / weight(share), share) end
  local line = call('HGET', lines, share)
  if line then
    call('ZREM', turns, line)
    call('HDEL', lines, share)
    call('ZREM', loads, share)
  end
end

local function forget(key)
  if call('ZREM', leases, key) == 1 then call('HDEL', shares, key) end
  local place = call('HGET', places, key)
  if place then
    call('ZREM', queue, place)
    call('HDEL', places, key)
    weigh_line(string.sub(place, 1, 16))
  end
end

local function mine()
  local keys = {}
  for _, list in ipairs({call('ZRANGE', leases, 0, -1), call('HKEYS', places)}) do
    for _, key in ipairs(list) do
      if of(key) == me then table.insert(keys, key) end
    end
  end
  return keys
end

local function keep(name, value)
  call('HSET', meta, name, string.format('%.0f', value))
end

local function set_limit(value, when)
  limit, limit_set = value, when
  keep('limit', limit)
  keep('limit_set', limit_set)
end

-- What it holds is free after `linger`: purge() sees to that.
local function remove(gateway, linger)
  call('ZREM', gateways, gateway)
  call('HDEL', epochs, gateway)
  call('HDEL', actives, gateway)
  for _, key in ipairs(call('HKEYS', places)) do
    if of(key) == gateway then forget(key) end
  end
  for _, key in ipairs(call('ZRANGE', leases, 0, -1)) do
    if of(key) == gateway then
      if linger > 0 then call('ZADD', leases, now + linger, key) else forget(key) end
    end
  end
  -- Whoever comes next may know another server at this address.
  if call('ZCARD', gateways) == 0 then set_limit(0, 0) end
end
"""

_CONVERSATION: Final = r"""
local function answer()
  local told = {born = born, limit = limit, limit_set = limit_set}
  told.used, told.waiting = call('ZCARD', leases), call('ZCARD', queue)
  told.granted, told.displaced = granted[me], displaced[me]
  if #lost > 0 then told.lost = lost end
  if told.waiting > 0 then
    told.again = calm - now
    if told.again <= 0 then
      local soonest = call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2] or now
      told.again = math.max(1, soonest - now)
    end
  end
  if standing then
    local all = call('ZRANGE', gateways, 0, -1)
    told.gateways, told.rank, told.active = #all, 0, 0
    for _, gateway in ipairs(all) do
      if gateway < me then told.rank = told.rank + 1 end
      if gateway ~= me then told.active = told.active + tonumber(call('HGET', actives, gateway) or 0) end
    end
    for _, key in ipairs(KEYS) do call('PEXPIRE', key, 86400000 + 10 * ttl) end
  end
  return cjson.encode(told)
end

local function tell_others()
  local notices = {}
  for what, list in pairs({granted = granted, displaced = displaced}) do
    for gateway, keys in pairs(list) do
      if gateway ~= me then
        notices[gateway] = notices[gateway] or {}
        notices[gateway][what] = keys
      end
    end
  end
  for gateway, notice in pairs(notices) do call('PUBLISH', channels .. gateway, cjson.encode(notice)) end
end

local function finish()
  grant()
  tell_others()
  return answer()
end

-- Also for a clock that went back: then nothing that is written down can be compared with it.
local function open()
  if (now - seen > ttl / 2 or seen - now > 1000) and call('ZCARD', leases) > 0 then
    calm = now + math.floor(ttl * 2 / 5)
    keep('calm', calm)
    if seen > now then
      for _, key in ipairs({gateways, leases}) do
        for _, member in ipairs(call('ZRANGE', key, 0, -1)) do call('ZADD', key, now + ttl, member) end
      end
    end
  end
  keep('seen', now)
end

local function purge()
  if now < calm then return end
  for _, gateway in ipairs(call('ZRANGEBYSCORE', gateways, '-inf', now)) do remove(gateway, 0) end
  for _, key in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now)) do forget(key) end
end

local function known()
  if not born then return false end
  open()
  purge()
  return tonumber(call('HGET', epochs, me) or -1) == epoch
end

local function renew(active)
  call('ZADD', gateways, now + ttl, me)
  call('HSET', actives, me, active)
  for _, key in ipairs(call('ZRANGE', leases, 0, -1)) do
    if of(key) == me then call('ZADD', leases, now + ttl, key) end
  end
end

-- What came of it for others is said even if this gateway is unknown: a purge may have been for them.
local STALE = '{"stale":true}'
local function refuse()
  if born then
    grant()
    tell_others()
  end
  return STALE
end
"""

_REGISTER: Final = r"""
if not born then
  born, made = me .. '-' .. string.format('%.0f', now), now
  call('HSET', meta, 'born', born)
  keep('made', made)
end
open()
local past = said.past or ''
if past ~= '' and past ~= born and now - made < empty_calm then
  calm = math.max(calm, made + empty_calm)
  keep('calm', calm)
end
purge()
if tonumber(call('HGET', epochs, me) or -1) > epoch then return refuse() end
call('HSET', epochs, me, epoch)
if said.set_limit then
  set_limit(said.limit, math.max(now, limit_set + 1))
elseif limit == 0 or (said.limit_set or 0) > limit_set then
  set_limit(said.limit, said.limit_set or 0)
end
local listed, missing = {}, {}
for _, claim in ipairs(said.leases or {}) do listed[claim[1]] = true end
for _, claim in ipairs(said.waiting or {}) do listed[claim[1]] = true end
for _, key in ipairs(mine()) do
  if not listed[key] then forget(key) end
end
renew(said.active or 0)
for _, claim in ipairs(said.leases or {}) do
  if not call('ZSCORE', leases, claim[1]) then
    if said.entitled then
      hold(claim[1], claim[2], now + ttl)
      calm = math.max(calm, now + empty_calm)
      keep('calm', calm)
    else
      table.insert(missing, claim)
    end
  end
end
grant()
for _, claim in ipairs(missing) do
  if call('ZCARD', leases) < limit then
    hold(claim[1], claim[2], now + ttl)
  else
    forget(claim[1])
    table.insert(lost, claim[1])
  end
end
for _, claim in ipairs(said.waiting or {}) do
  local key, share, its_weight, priority = unpack(claim)
  if call('ZSCORE', leases, key) then
    add(granted, key)
  elseif call('HEXISTS', places, key) == 0 then
    wait(key, share, its_weight, priority, said.queue_limit or 1024)
  end
end
standing = true
return finish()
"""

_RENEW: Final = r"""
if not known() then return refuse() end
renew(said.active or 0)
if said.limit then set_limit(said.limit, math.max(now, limit_set + 1)) end
standing = true
return finish()
"""

_ACQUIRE: Final = r"""
if not known() then return refuse() end
local key, share, its_weight, priority = unpack(said.claim)
if not call('ZSCORE', leases, key) and call('HEXISTS', places, key) == 0 then
  wait(key, share, its_weight, priority, said.queue_limit or 1024)
end
return finish()
"""

_RELEASE: Final = r"""
if not known() then return refuse() end
call('HSET', actives, me, said.active or 0)
for _, key in ipairs(said.keys) do forget(key) end
return finish()
"""

_LEAVE: Final = r"""
if not known() then return refuse() end
remove(me, said.linger or 0)
return finish()
"""

SCRIPTS: Final = {
    "Register": _PRELUDE + QUEUE + _CONVERSATION + _REGISTER,
    "Renew": _PRELUDE + QUEUE + _CONVERSATION + _RENEW,
    "Acquire": _PRELUDE + QUEUE + _CONVERSATION + _ACQUIRE,
    "Release": _PRELUDE + QUEUE + _CONVERSATION + _RELEASE,
    "Leave": _PRELUDE + QUEUE + _CONVERSATION + _LEAVE,
}
