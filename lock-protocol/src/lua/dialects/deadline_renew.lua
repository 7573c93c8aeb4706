-- deadline_renew: moves the deadline of a lock that the caller holds, by GETSET. Never creates a key.
--
-- KEYS[1] lock key            a string: the deadline in milliseconds since the epoch
-- ARGV[1] deadline            end of the lease: milliseconds since the epoch
-- ARGV[2] spare               milliseconds between the deadline and the expiry of the key
-- ARGV[3...] deadlines        that the caller may have written before
--
-- Returns, with the server's time in microseconds as second element. The value is that of the key, cut
-- to 200 bytes, or its type if it is no string. Without the key there is no value:
--   held  now                 the lease is extended
--   gone  now  value          the caller does not hold the lock, or one of its deadlines has passed
--
-- By hand, from this folder, with the deadline that the key holds:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua deadline_renew.lua) \
--     lock:a , $(($(date +%s%3N) + 30001)) 100 1763700000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused then
  if not is_wrong_type then
    return refused
  end
  value = redis.call('TYPE', KEYS[1]).ok
end
local was_owner = false
for i = 3, #ARGV do
  -- The key may have held this deadline, and another client may have taken the lock over since, with
  -- a deadline that equals one of the caller's that never arrived.
  if tonumber(ARGV[i]) * 1000 < now then
    return {'gone', now, value and string.sub(value, 1, 200) or nil}
  end
  was_owner = was_owner or value == ARGV[i]
end
if not was_owner then
  return {'gone', now, value and string.sub(value, 1, 200) or nil}
end
-- GETSET removes the expiry, which follows again. If the server refuses to set one, it does so before the key has changed.
redis.call('PEXPIREAT', KEYS[1], ARGV[1] + ARGV[2])
redis.call('GETSET', KEYS[1], ARGV[1])
redis.call('PEXPIREAT', KEYS[1], ARGV[1] + ARGV[2])
return {'held', now}
