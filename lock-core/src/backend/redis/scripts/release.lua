#!lua flags=allow-oom
-- release: releases the lock, leaves the queue, and hands over to the next waiter.
--
-- It also cancels an acquire: it removes everything that the owner id has or waits for.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that yields to other clients
-- KEYS[5] holders             a zset while several hold K: "<owner id> <number> <label>" -> end of the lease.
--                             An exclusive caller outside of a cluster leaves it out, as in acquire.lua
-- ARGV[1] owner id            of the caller
-- ARGV[2] floor               microseconds: no token may be lower
-- ARGV[3] grace               milliseconds for which a key with waiters stays free for foreign
--                             clients; 0 hands over at once
-- ARGV[4] lead                microseconds: how far a counter's seed lies ahead of the time; 0, also
--                             when it is missing
-- A release of an exclusive lock whose reply arrived, and which has no entry in the queue, ends here.
-- Everything else needs the server's time in the reply, and has:
-- ARGV[5] min_hold            milliseconds for which the caller's lock stays locked without an
--                             owner; 0 releases it at once
-- ARGV[6] label               of the caller's acquire
-- ARGV[7] kind                of the lock, as in acquire.lua
-- ARGV[8...] entries          that the owner id has, or may have, in the queue
--
-- Returns one string. Its words are separated by spaces. `now` is two words: the seconds of the
-- server's time, and the microseconds in the second. It may be missing when there is no ARGV[5].
--   released  now     the caller held it; it is free, or has no owner until min_hold has passed
--   handed    now     the caller held it; the next waiter holds it now
--   gone      now     the caller did not hold it
-- and "more" as last word when the first hundred entries were dead and are removed, or were let in: call
-- again, so that a live waiter behind them gets K.
--
-- By hand, from this folder (the included files are inserted where their names stand):
--   redis-cli --eval <(sed '/^-- include grant_next.lua$/r grant_next.lua' release.lua |
--     sed '/^-- include group.lua$/r group.lua' | sed '/^ *-- include next_token.lua$/r next_token.lua') \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' '{lock:a}:h' , 6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 0 0 0

local value = redis.pcall('GET', KEYS[1])
local was_owner = type(value) == 'string' and string.sub(value, 1, 41) == 'lk1:' .. ARGV[1] .. ' '

-- The common case first, with as few calls as possible. Nothing may fail before the key is deleted.
if was_owner and not ARGV[5] and redis.pcall('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 'released'
end

-- The same for a shared lock of weight 1.
local min_hold, kind = ARGV[5] or '0', ARGV[7] or ''
local time, removed
if kind ~= '' and min_hold == '0' and not ARGV[8] and type(value) == 'string'
    and string.match(value, '^lks:(%S+) %d+ %d+ ') == kind then
  time = redis.call('TIME')
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(' .. time[1] .. string.sub('00000' .. time[2], -6, -4))
  removed = redis.call('ZREM', KEYS[5], ARGV[1] .. ' 1 ' .. ARGV[6])
  if redis.call('EXISTS', KEYS[5], KEYS[2]) == 0 then
    redis.call('DEL', KEYS[1])
    return (removed > 0 and 'released ' or 'gone ') .. time[1] .. ' ' .. time[2]
  end
end

-- include grant_next.lua

time = time or redis.call('TIME')
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = ''
end
local moved, groups, group = was_owner, nil, nil
if was_owner and min_hold ~= '0' then
  -- Under the nil owner id: a renewal or an acquire that this call has overtaken does not match it,
  -- and cannot extend the lease.
  value = 'lk1:00000000-0000-0000-0000-000000000000 ' .. string.sub(value, 42)
  redis.call('SET', KEYS[1], value, 'PX', min_hold)
elseif was_owner then
  -- Before everything that can fail: a broken queue or counter is reported, and K is free.
  redis.call('DEL', KEYS[1])
  value = false
elseif value and string.sub(value, 1, 4) == 'lks:' then
  groups = group_functions()
  group = groups.read(value)
end
if group then
  local now_ms, holders = time[1] * 1000 + math.floor(time[2] / 1000), groups.holders
  if removed then
    was_owner = removed > 0
  else
    groups.remove_dead(now_ms)
  end
  if kind ~= '' and not removed then
    local _, weight = groups.read_kind(kind)
    local members = {}
    for number = 1, weight do
      members[number] = ARGV[1] .. ' ' .. number .. ' ' .. ARGV[6]
    end
    was_owner = redis.call('ZREM', holders, unpack(members)) > 0
    if was_owner and min_hold ~= '0' then
      -- As above: the permits stay taken, without an owner.
      groups.write_members('GT', string.format('%.0f', now_ms + min_hold), '-' .. ARGV[1], weight, ARGV[6])
    end
  end
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  if not last then
    redis.call('DEL', KEYS[1])
    value, group, moved = false, nil, true
  elseif was_owner then
    -- Redis deletes a key at an end that is not in the future, and a member is alive up to its end. Without
    -- these ten milliseconds, a release in the millisecond of another member's end would free K.
    local ends, left = math.max(last, now_ms + 10), redis.call('PTTL', KEYS[1])
    -- A kept permit may end before those that the head of the queue knows of.
    moved = left < 0 or ends < now_ms + left or min_hold ~= '0'
    for _, key in ipairs({KEYS[1], holders}) do
      redis.call('PEXPIREAT', key, string.format('%.0f', ends))
    end
  end
end
-- In parts: unpack takes some thousand arguments at most.
for first = 8, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  moved = redis.call('ZREM', KEYS[2], unpack(ARGV, first, last)) > 0 or moved
end
local verdict, more = was_owner and 'released ' or 'gone ', false
if redis.call('EXISTS', KEYS[2]) == 1 then
  if was_owner and not value and ARGV[3] ~= '0' then
    redis.call('SET', KEYS[4], '', 'PX', ARGV[3])
  end
  local command = {time = time, now = time[1] * 1000000 + time[2], floor = ARGV[2], lead = ARGV[4] or 0,
    groups = groups}
  if group then
    group.used = redis.call('ZCARD', groups.holders)
  end
  local _, any
  _, any, _, _, more = grant_next(command, value, moved, group)
  verdict = was_owner and any and 'handed ' or verdict
end

return verdict .. time[1] .. ' ' .. time[2] .. (more and ' more' or '')
