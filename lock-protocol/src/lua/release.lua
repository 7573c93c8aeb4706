-- release: releases the lock, leaves the queue, and hands over to the next waiter.
--
-- It also cancels an acquire: it removes everything that the owner id has or waits for.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that yields to other clients
-- KEYS[5] holders             a zset while several hold K: "<owner id> <number> <label>" -> end of the lease
-- ARGV[1] owner id            of the caller
-- ARGV[2] floor               microseconds: no token may be lower
-- ARGV[3] grace               milliseconds for which a key with waiters stays free for foreign
--                             clients; 0 hands over at once
-- ARGV[4] lead                microseconds: how far a counter's seed lies ahead of the time; 0, also
--                             when it is missing
-- A release of an exclusive lock whose reply arrived, and which has no entry in the queue, ends here.
-- Everything else needs the server's time in the reply, and has:
-- ARGV[5] min_hold            milliseconds for which the caller's lock stays locked without an
--                             owner; 0 releases it at once. "done <period>" says that the caller's work has
--                             succeeded: see keep.lua
-- ARGV[6] label               of the caller's acquire
-- ARGV[7] kind                of the lock, as in acquire.lua
-- ARGV[8...] entries          that the owner id has, or may have, in the queue
--
-- Returns one string. Its words are separated by spaces. `now` is two words: the seconds of the
-- server's time, and the microseconds in the second. It may be missing when there is no ARGV[5].
--   released  now     the caller held it; it is free, or has no owner until min_hold or the period has passed
--   handed    now     the caller held it; the next waiter holds it now
--   gone      now     the caller did not hold it
-- and "more" as last word when the first hundred entries were dead and are removed, or were let in: call
-- again, so that a live waiter behind them gets K.
--
-- Paths. This part is the fast one, and release_slow.lua the rest, as in acquire.lua:
--   1  exclusive, the caller holds K, nothing but the release is asked for, no queue      released
--   2  shared with weight 1, no min_hold, no entries: the last member, no queue           released or gone
--   3  everything else                                                                    release_slow.lua
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/frees.lua head/classic.lua release.lua attempt.lua next_token.lua \
--     group.lua grant_next.lua keep.lua release_slow.lua) lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' '{lock:a}:h' , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 0 0 0

-- By Lua's pcall: see attempt.lua, which stands behind this part.
local is_read, value = pcall(redis.call, 'GET', KEYS[1])
local was_owner = is_read and type(value) == 'string' and string.sub(value, 1, 41) == 'lk1:' .. ARGV[1] .. ' '

-- The common case first, with as few calls as possible. The key goes before anything that may fail.
if was_owner and not ARGV[5] then
  redis.call('DEL', KEYS[1])
  if redis.call('EXISTS', KEYS[2]) == 0 then
    return 'released'
  end
end

-- The same for a shared lock of weight 1.
local min_hold, kind = ARGV[5] or '0', ARGV[7] or ''
local time, removed
if kind ~= '' and min_hold == '0' and not ARGV[8] and is_read and type(value) == 'string'
    and string.match(value, '^lks:(%S+) %d+ %d+ ') == kind then
  time = redis.call('TIME')
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(' .. time[1] .. string.sub('00000' .. time[2], -6, -4))
  removed = redis.call('ZREM', KEYS[5], ARGV[1] .. ' 1 ' .. ARGV[6])
  if redis.call('EXISTS', KEYS[5], KEYS[2]) == 0 then
    redis.call('DEL', KEYS[1])
    return (removed > 0 and 'released ' or 'gone ') .. time[1] .. ' ' .. time[2]
  end
end
