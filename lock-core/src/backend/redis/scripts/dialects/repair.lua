#!lua
-- repair: give a lock an expiry whose holder died before it could.
--
-- KEYS[1] lock key            a string without an expiry
-- ARGV[1] owner               who was seen holding it: at most the first 200 bytes
-- ARGV[2] ttl                 milliseconds from now
--
-- Answers with the server's time in microseconds as second element:
--   held  now                 it ends after the ttl now
--   gone  now                 it is somebody else's by now, or has an expiry
--
-- By hand, from this folder:
--   redis-cli --eval repair.lua lock:a , them 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
-- Seen by a look before: the holder may live, and have set its own meanwhile.
local same = type(value) == 'string' and string.sub(value, 1, 200) == ARGV[1]
if not same or redis.call('PTTL', KEYS[1]) ~= -1 then
  return {'gone', now}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'held', now}
