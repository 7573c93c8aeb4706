-- renew: sets the expiry of a lock that the caller holds. Never creates a key.
--
-- KEYS[1] lock key            a string
-- ARGV[1] owner               the value that the caller has written
-- ARGV[2] ttl                 milliseconds from now
--
-- Returns, with the server's time in microseconds as second element. The value is that of the key, cut
-- to 200 bytes, or its type if it is no string. Without the key there is no value:
--   held  now                 the lease is extended
--   gone  now  value          the caller does not hold the lock
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua renew.lua) lock:a , me 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused then
  if not is_wrong_type then
    return refused
  end
  value = redis.call('TYPE', KEYS[1]).ok
end
if value ~= ARGV[1] then
  return {'gone', now, value and string.sub(value, 1, 200) or nil}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'held', now}
