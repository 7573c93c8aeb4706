#!lua flags=allow-oom
-- release: delete the lock that is still yours, or let it end soon.
--
-- KEYS[1] lock key            a string with an expiry
-- ARGV[1] owner               who holds it
-- ARGV[2] keep                milliseconds for which it stays locked all the same
-- ARGV[3] nobody              what stands there meanwhile
--
-- Answers with the server's time in microseconds as second element:
--   held  now                 it was yours until now
--   gone  now                 it is not yours (any more)
--
-- By hand, from this folder:
--   redis-cli --eval release.lua lock:a , me 0 nobody

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
if value ~= ARGV[1] then
  return {'gone', now}
end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
else
  -- Owned by nobody: a renewal that was overtaken by this call must not lengthen it.
  redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
  redis.call('PEXPIRE', KEYS[1], ARGV[2], 'LT')
end
return {'held', now}
