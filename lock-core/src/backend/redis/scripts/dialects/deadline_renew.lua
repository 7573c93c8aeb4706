#!lua flags=allow-oom
-- deadline_extend: move the deadline of the lock that is still yours, by GETSET. Never makes a
-- key.
--
-- KEYS[1] lock key            a string: the deadline in milliseconds since the epoch
-- ARGV[1] deadline            until when the lock is to be yours
-- ARGV[2] spare               milliseconds after its deadline in which the key goes by itself
-- ARGV[3...] the deadlines that you may have written before
--
-- Answers with the server's time in microseconds as second element:
--   held  now                 extended
--   gone  now                 it is not yours (any more), or one of those deadlines has passed
--
-- By hand, from this folder, with the deadline that stands there:
--   redis-cli --eval deadline_extend.lua lock:a , $(($(date +%s%3N) + 30001)) 100 1763700000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
local mine = false
for i = 3, #ARGV do
  -- It may have stood there, and the lock be taken over since: by one whose deadline reads like
  -- another of yours that never arrived.
  if tonumber(ARGV[i]) * 1000 < now then
    return {'gone', now}
  end
  mine = mine or value == ARGV[i]
end
if not mine then
  return {'gone', now}
end
redis.call('GETSET', KEYS[1], ARGV[1])
redis.call('PEXPIREAT', KEYS[1], ARGV[1] + ARGV[2])
return {'held', now}
