#!lua flags=allow-oom
-- release: releases the lock, leaves the queue, and hands over to the next waiter.
--
-- It also cancels an acquire: it removes everything that the owner id has or waits for.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that yields to other clients
-- ARGV[1] owner id            of the caller
-- ARGV[2] floor               microseconds: no token may be lower
-- ARGV[3] grace               milliseconds for which a key with waiters stays free for foreign
--                             clients; 0 hands over at once
-- ARGV[4] lead                microseconds: how far a counter's seed lies ahead of the time; 0, also
--                             when it is missing
-- A release of an acquire whose reply arrived, and which has no entry in the queue, ends here.
-- Everything else needs the server's time in the reply, and has:
-- ARGV[5] min_hold            milliseconds for which the caller's lock stays locked without an
--                             owner; 0 releases it at once
-- ARGV[6] label               of the caller
-- ARGV[7] kind                of the lock: "" in this version
-- ARGV[8...] entries          that the owner id has, or may have, in the queue
--
-- Returns one string. Its words are separated by spaces. `now` is two words: the seconds of the
-- server's time, and the microseconds in the second. It may be missing when there is no ARGV[5].
--   released  now     the caller held it; it is free, or has no owner until min_hold has passed
--   handed    now     the caller held it; the next waiter holds it now
--   gone      now     the caller did not hold it
-- and "more" as last word when K is free and the first hundred entries were dead and are removed: call
-- again, so that a live waiter behind them gets K.
--
-- By hand, from this folder (the included files are inserted where their names stand):
--   redis-cli --eval <(sed '/^-- include grant_next.lua$/r grant_next.lua' release.lua |
--     sed '/^ *-- include next_token.lua$/r next_token.lua') \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' , 6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 0 0 0

local value = redis.pcall('GET', KEYS[1])
local was_owner = type(value) == 'string' and string.sub(value, 1, 41) == 'lk1:' .. ARGV[1] .. ' '

-- The common case first, with as few calls as possible. Nothing may fail before the key is deleted.
if was_owner and not ARGV[5] and redis.pcall('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 'released'
end

-- include grant_next.lua

local time = redis.call('TIME')
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = ''
end
local min_hold = ARGV[5] or '0'
if was_owner and min_hold ~= '0' then
  -- Under the nil owner id: a renewal or an acquire that this call has overtaken does not match it,
  -- and cannot extend the lease.
  value = 'lk1:00000000-0000-0000-0000-000000000000 ' .. string.sub(value, 42)
  redis.call('SET', KEYS[1], value, 'PX', min_hold)
elseif was_owner then
  -- Before everything that can fail: a broken queue or counter is reported, and K is free.
  redis.call('DEL', KEYS[1])
  value = false
end
local moved = was_owner
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
  local command = {time = time, now = time[1] * 1000000 + time[2], floor = ARGV[2], lead = ARGV[4] or 0}
  local owner, _, _
  owner, _, _, more = grant_next(command, value, moved)
  verdict = was_owner and owner and 'handed ' or verdict
end

return verdict .. time[1] .. ' ' .. time[2] .. (more and ' more' or '')
