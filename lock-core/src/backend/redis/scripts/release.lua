#!lua flags=allow-oom
-- release: give the lock up, leave the queue, and hand on to whoever is next.
--
-- It is also how an acquire is taken back (cancel): whatever the owner id has or wants is gone.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that lets other clients in
-- ARGV[1] owner id            who releases
-- ARGV[2] floor               microseconds: no token may be lower
-- ARGV[3] grace               milliseconds during which a key with waiters stays free for
--                             foreign clients; 0 hands over at once
-- ARGV[4] keep                milliseconds during which a lock that was yours stays locked, owned
--                             by nobody; 0 lets it go at once
-- ARGV[5] lead                microseconds: how far a counter's seed lies ahead of the time; 0
-- ARGV[6] label               of the one who releases
-- ARGV[7] kind                of the lock: "" in this version
-- ARGV[8...] entries that the owner id stands, or may stand, in the queue with
--
-- Answers with the server's time in microseconds as second element:
--   released  now     it was yours, and is free, or nobody's until `keep` is over
--   handed    now     it was yours, and is the next waiter's
--   gone      now     it was not yours
-- and with "more" as the third where K is free and the first hundred of the queue were dead and
-- are gone: to be called again, so that whoever lives behind them gets K.
--
-- By hand, from this folder (drive.lua stands where its name does below):
--   redis-cli --eval <(sed '/^-- include drive.lua$/r drive.lua' release.lua) \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 0 0 0 0 by-hand ''

local nonce, floor, lead = ARGV[1], ARGV[2], ARGV[5]
local entry, ttl, label, owner -- of a caller who wants the lock: none here
local time = redis.call('TIME')
local now, now_ms = time[1] * 1000000 + time[2], nil

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = ''
end
local mine = value and string.sub(value, 1, 41) == 'lk1:' .. nonce .. ' '
if mine and ARGV[4] ~= '0' then
  -- Under the nil id: a renewal or an acquire that was overtaken by this call finds that it is
  -- not its own, and cannot lengthen it.
  value = 'lk1:00000000-0000-0000-0000-000000000000 ' .. string.sub(value, 42)
  redis.call('SET', KEYS[1], value, 'PX', ARGV[4])
elseif mine then
  -- Before anything that can fail: a broken queue or counter is reported, and K is free.
  redis.call('DEL', KEYS[1])
  value = false
end
local moved = mine
-- In parts: a call takes some thousand arguments at most.
for first = 8, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  moved = redis.call('ZREM', KEYS[2], unpack(ARGV, first, last)) > 0 or moved
end
local queue = redis.call('EXISTS', KEYS[2]) == 1
if mine and not value and queue and ARGV[3] ~= '0' then
  redis.call('SET', KEYS[4], '', 'PX', ARGV[3])
end

-- include drive.lua

return {mine and (owner and 'handed' or 'released') or 'gone', now, more and 'more' or nil}
