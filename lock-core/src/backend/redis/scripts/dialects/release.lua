#!lua flags=allow-oom
-- release: delete the lock that is still yours, or let it end soon.
--
-- KEYS[1] lock key            a string with an expiry
-- ARGV[1] owner               who holds it
-- ARGV[2] keep                milliseconds for which it stays locked all the same
--
-- Answers with the server's time in microseconds as second element:
--   held  now                 it was yours until now
--   gone  now                 it is not yours (any more)
--
-- By hand, from this folder:
--   redis-cli --eval release.lua lock:a , me 0

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return {'gone', now}
end
local keep = tonumber(ARGV[2])
if keep == 0 then
  redis.call('DEL', KEYS[1])
elseif redis.call('PTTL', KEYS[1]) > keep then
  redis.call('PEXPIRE', KEYS[1], keep)
end
return {'held', now}
