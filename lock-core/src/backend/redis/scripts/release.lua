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
-- ARGV[4] min_hold            milliseconds for which the caller's lock stays locked without an
--                             owner; 0 releases it at once
-- ARGV[5] lead                microseconds: how far a counter's seed lies ahead of the time; 0
-- ARGV[6] label               of the caller
-- ARGV[7] kind                of the lock: "" in this version
-- ARGV[8...] entries          that the owner id has, or may have, in the queue
--
-- Returns, with the server's time in microseconds as second element:
--   released  now     the caller held it; it is free, or has no owner until min_hold has passed
--   handed    now     the caller held it; the next waiter holds it now
--   gone      now     the caller did not hold it
-- and "more" as third element when K is free and the first hundred entries were dead and are
-- removed: call again, so that a live waiter behind them gets K.
--
-- By hand, from this folder (grant_next.lua is inserted where its name stands below):
--   redis-cli --eval <(sed '/^-- include grant_next.lua$/r grant_next.lua' release.lua) \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 0 0 0 0 by-hand ''

-- include grant_next.lua

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = ''
end
local was_owner = value and string.sub(value, 1, 41) == 'lk1:' .. ARGV[1] .. ' '
if was_owner and ARGV[4] ~= '0' then
  -- Under the nil owner id: a renewal or an acquire that this call has overtaken does not match it,
  -- and cannot extend the lease.
  value = 'lk1:00000000-0000-0000-0000-000000000000 ' .. string.sub(value, 42)
  redis.call('SET', KEYS[1], value, 'PX', ARGV[4])
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
local verdict, more = was_owner and 'released' or 'gone', false
if redis.call('EXISTS', KEYS[2]) == 1 then
  if was_owner and not value and ARGV[3] ~= '0' then
    redis.call('SET', KEYS[4], '', 'PX', ARGV[3])
  end
  local call = {time = time, now = now, floor = ARGV[2], lead = ARGV[5]}
  local owner, _, _
  owner, _, _, more = grant_next(call, value, nil, true, moved)
  verdict = was_owner and owner and 'handed' or verdict
end

return {verdict, now, more and 'more' or nil}
