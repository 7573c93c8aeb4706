#!lua
-- acquire: acquires the lock, or enters its queue, or returns the holder.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that yields to other clients
-- KEYS[5] holders             a zset while several hold K: "<owner id> <number> <label>" -> end of the lease.
--                             An exclusive caller outside of a cluster leaves it out: a key costs 3 % of a pair
-- ARGV[1] owner id            of the caller
-- ARGV[2] ttl                 milliseconds
-- ARGV[3] floor               microseconds: no token may be lower
-- ARGV[4] not_after           milliseconds of server time: a later copy of this call does nothing
-- ARGV[5] label               for people
-- ARGV[6] entry               "<owner id> <mode><kind> <lease ms> <expires_at ms> <channel> <label>",
--                             or "" for one attempt without an entry in the queue
-- ARGV[7] lead                microseconds: how far a counter's seed lies ahead of the time; 0
-- ARGV[8] kind                of the lock: "" exclusive, "r" for reading, "<of>" one of that many permits,
--                             "<of>x<weight>" several of them; ">r" makes the holder of the exclusive lock a
--                             reader, and no other caller
-- ARGV[9...] earlier entries  that the same owner id had, or may have had, in the queue
-- The last arguments may be missing: each one costs the server 0.1 us. Then the entry is "", the lead is
-- 0, and the kind is "".
--
-- The value of K is "lk1:<owner id> <token> <since ms> <label>", or of a shared K
-- "lks:<group> <token> <since ms> <label>", with the group "r" or the number of permits. All holders of a group
-- have its token.
--
-- Returns one string, because a reply of several elements costs the server 0.7 us more. Its words are
-- separated by spaces. `now` is two words: the seconds of the server's time, and the microseconds in
-- the second.
--   late     now                              the call came after not_after; nothing was written
--   held     now  token  remaining            the caller holds the lock (also if it did before)
--   queued   now  rank   remaining  value     the caller waits; remaining and value are the holder's
--   busy     now  remaining  value            another holder has the lock, or goes before the caller
--   more     now                              the first hundred entries were dead and are removed, or were
--                                             let in, and others stand behind them: call again at once
--   foreign  now  type                        the key holds something that is no string
--   gone     now                              the caller of a downgrade does not hold K; nothing was written
-- A remaining of -1 is a key without expiry. For a caller that needs a permit of the same number, it is the
-- first end of a lease. The value is cut to 200 bytes, "" while K is free. It may have spaces and any other
-- bytes. That of a shared K has its number of members before the group: "lks:3:r ..".
--
-- By hand, from this folder (the included files are inserted where their names stand below):
--   redis-cli --eval <(sed '/^-- include grant_next.lua$/r grant_next.lua' acquire.lua |
--     sed '/^-- include group.lua$/r group.lua' | sed '/^ *-- include next_token.lua$/r next_token.lua') \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' '{lock:a}:h' , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 30000 0 9999999999999 by-hand '' 0 ''

local time = redis.call('TIME')
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros

-- A copy that was lost, resent or overtaken must not take effect later.
if now >= (ARGV[4] + 1) * 1000 then
  return 'late ' .. seconds .. ' ' .. micros
end

-- The common case first, with as few calls as possible: the key is free and has no queue.
local kind = ARGV[8] or ''
if kind == '' and redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local floor, lead = ARGV[3], ARGV[7] or 0
  -- include next_token.lua
  -- The milliseconds are cut from the text of the time: formatting a number costs more.
  redis.call('SET', KEYS[1], 'lk1:' .. ARGV[1] .. ' ' .. token .. ' ' .. seconds
    .. string.sub('00000' .. micros, -6, -4) .. ' ' .. ARGV[5], 'PX', ARGV[2])
  return 'held ' .. seconds .. ' ' .. micros .. ' ' .. token .. ' ' .. ARGV[2]
end

-- The same for a shared lock of weight 1.
local stamp = ' ' .. seconds .. ' ' .. micros
if kind ~= '' and not string.find(kind, '[>x]') and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[5]) == 0 then
  local floor, lead = ARGV[3], ARGV[7]
  -- include next_token.lua
  local ends = string.format('%.0f', math.floor(now / 1000) + ARGV[2])
  redis.call('ZADD', KEYS[5], ends, ARGV[1] .. ' 1 ' .. ARGV[5])
  local done = redis.pcall('PEXPIREAT', KEYS[5], ends)
  if type(done) == 'table' then
    -- The caller has no right to do so: no key without an end may be left.
    redis.call('DEL', KEYS[5])
    return done
  end
  redis.call('SET', KEYS[1], 'lks:' .. kind .. ' ' .. token .. ' ' .. seconds
    .. string.sub('00000' .. micros, -6, -4) .. ' ' .. ARGV[5], 'PXAT', ends)
  return 'held' .. stamp .. ' ' .. token .. ' ' .. ARGV[2]
end

-- include grant_next.lua

-- Times stay texts where they are only passed on.
local owner_id, ttl, label, entry = ARGV[1], ARGV[2], ARGV[5], ARGV[6] or ''
local is_downgrade = kind == '>r'
local command = {time = time, now = now, floor = ARGV[3], lead = ARGV[7] or 0, owner_id = owner_id,
  ttl = ttl, label = label, kind = kind, entry = entry}
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  return 'foreign' .. stamp .. ' ' .. redis.call('TYPE', KEYS[1]).ok
end

local groups, group, name, weight, limit
if kind ~= '' or value and string.sub(value, 1, 4) == 'lks:' then
  groups = group_functions()
  command.groups, command.kind = groups, is_downgrade and 'r' or kind
  name, weight, limit = groups.read_kind(command.kind)
end

-- Lets the caller in, without regard to others.
local function take()
  group = groups.admit(command, group, name, weight, owner_id, ttl, label)
  groups.write(group, math.floor(now / 1000))
  return 'held' .. stamp .. ' ' .. group.token .. ' ' .. ttl
end

if value then
  -- The acquire is idempotent: the same token, and at least the ttl of this call.
  if string.sub(value, 1, 41) == 'lk1:' .. owner_id .. ' ' then
    if is_downgrade then
      local reply = take()
      command.entry = nil
      grant_next(command, group.value, false, group)
      return reply
    end
    local remaining = redis.call('PTTL', KEYS[1])
    if remaining < tonumber(ttl) then
      redis.call('PEXPIRE', KEYS[1], ttl)
      remaining = ttl
    end
    return 'held' .. stamp .. ' ' .. string.match(value, '^%S+ (%S+)')
      .. string.format(' %.0f', remaining)
  end
  group = groups and groups.read(value)
  if group then
    local now_ms = math.floor(now / 1000)
    groups.remove_dead(now_ms)
    group.used = redis.call('ZCARD', groups.holders)
    if group.used == 0 then
      redis.call('DEL', KEYS[1])
      value, group = false, nil
    else
      -- Whatever kind is asked for: a copy from before a downgrade changes nothing.
      local left = groups.raise_members(now_ms, ttl, owner_id, weight, label)
      if left then
        return 'held' .. stamp .. ' ' .. group.token .. string.format(' %.0f', left)
      end
    end
  end
end
if is_downgrade then
  return 'gone' .. stamp
end
if kind ~= '' and (not value or group and group.name == name and group.used + weight <= limit)
    and redis.call('EXISTS', KEYS[2]) == 0 then
  return take()
end
if value and entry == '' and not (group and group.name == name) then
  local remaining = string.format(' %.0f ', redis.call('PTTL', KEYS[1]))
  if group then
    value = 'lks:' .. group.used .. ':' .. string.sub(value, 5)
  end
  return 'busy' .. stamp .. remaining .. string.sub(value, 1, 200)
end

local moved = false -- whether the queue may have another head than before
if entry ~= '' then
  local was_queued = redis.call('ZSCORE', KEYS[2], entry)
  if not was_queued or ARGV[9] then
    -- In the order of arrival: behind the last entry, or at the place of an earlier entry of the
    -- same owner id.
    local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
    local score = last[2] and last[2] + 1 or 1
    for i = 9, #ARGV do
      local earlier = redis.call('ZSCORE', KEYS[2], ARGV[i])
      if earlier then
        score = math.min(score, tonumber(earlier))
        redis.call('ZREM', KEYS[2], ARGV[i])
      end
    end
    if not was_queued then
      redis.call('ZADD', KEYS[2], score, entry)
    end
  end
  if was_queued and value and not group then
    -- Removes expired entries, if the head has expired. Those behind a live head stay: reading a
    -- hundred entries costs ten times as much as the rest of a poll. Entries whose channel has no
    -- subscriber stay while K is held: their connection may be broken for a moment only. grant_next
    -- removes those of a shared K.
    local now_ms, expired = math.floor(now / 1000), {}
    local function find_expired(first, last)
      for _, other in ipairs(redis.call('ZRANGE', KEYS[2], first, last)) do
        local expires_at = string.match(other, '^%S+ %a%S* %d+ (%d+) %S+ ')
        if expires_at and now_ms > tonumber(expires_at) and other ~= entry then
          expired[#expired + 1] = other
        end
      end
    end
    find_expired(0, 0)
    if expired[1] then
      find_expired(1, 99)
      redis.call('ZREM', KEYS[2], unpack(expired))
      moved = true
    end
  end
end

local own, _, grace, more
own, _, value, grace, more, group = grant_next(command, value, moved, group)

if own then
  return 'held' .. stamp .. ' ' .. own.token .. ' ' .. own.lease
end
if more then
  return 'more' .. stamp
end
local remaining = value and redis.call('PTTL', KEYS[1]) or grace
if group then
  groups = groups or group_functions()
  remaining = groups.wait_ms(kind, group, math.floor(now / 1000))
  value = 'lks:' .. group.used .. ':' .. string.sub(value, 5)
end
value = string.format('%.0f ', remaining) .. (value and string.sub(value, 1, 200) or '')
if entry == '' then
  return 'busy' .. stamp .. ' ' .. value
end
-- The queue outlives the lock and the last poll by ten minutes, the longest lifetime of an entry.
-- Other clients write keys that expire in a million years: a day is enough.
local held = math.min(math.max(remaining, 0), 86400000)
redis.call('PEXPIRE', KEYS[2], held + 600000)
return 'queued' .. stamp .. ' ' .. redis.call('ZRANK', KEYS[2], entry) .. ' ' .. value
