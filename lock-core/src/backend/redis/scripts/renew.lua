#!lua flags=allow-oom
-- renew: extends the lease of a lock that the caller holds. Never creates a key, and never shortens
-- the lease: a holder relies on the end that an earlier renewal returned.
--
-- KEYS[1] lock key K          a string with an expiry
-- ARGV[1] owner id            of the caller
-- ARGV[2] ttl                 milliseconds from now
--
-- Returns, with the server's time in microseconds as second element:
--   held  now  token  remaining   the lease is extended
--   gone  now                     the caller does not hold the lock
--
-- By hand, from this folder:
--   redis-cli --eval renew.lua lock:a , 6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 1, 41) == 'lk1:' .. ARGV[1] .. ' ' then
  local ttl, remaining = tonumber(ARGV[2]), redis.call('PTTL', KEYS[1])
  if remaining < ttl then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    remaining = ttl
  end
  return {'held', now, string.match(value, '^%S+ (%S+)'), remaining}
end
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
return {'gone', now}
