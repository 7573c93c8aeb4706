#!lua flags=allow-oom
-- renew: sets the expiry of a lock that the caller holds. Never creates a key.
--
-- KEYS[1] lock key            a string
-- ARGV[1] owner               the value that the caller has written
-- ARGV[2] ttl                 milliseconds from now
--
-- Returns, with the server's time in microseconds as second element:
--   held  now                 the lease is extended
--   gone  now                 the caller does not hold the lock
--
-- By hand, from this folder:
--   redis-cli --eval renew.lua lock:a , me 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
if value ~= ARGV[1] then
  return {'gone', now}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'held', now}
