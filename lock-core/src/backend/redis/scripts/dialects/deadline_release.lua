#!lua flags=allow-oom
-- deadline_release: delete the lock if its deadline is still yours and has not passed: after
-- that somebody else may be about to take it over.
--
-- KEYS[1] lock key            a string: the deadline in milliseconds since the epoch
-- ARGV[1] keep                milliseconds for which it stays locked all the same
-- ARGV[2] spare               milliseconds after its deadline in which the key goes by itself
-- ARGV[3...] the deadlines that you may have written
--
-- Answers with the server's time in microseconds as second element:
--   held  now                 it was yours until now
--   gone  now                 it is not yours (any more), or one of those deadlines has passed
--
-- By hand, from this folder, with the deadline that stands there:
--   redis-cli --eval deadline_release.lua lock:a , 0 100 1763700000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
local keep = tonumber(ARGV[1])
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
local mine = false
for i = 3, #ARGV do
  -- It may have stood there, and the lock be taken over since: by one whose deadline reads like
  -- another of yours that never arrived.
  if tonumber(ARGV[i]) < now_ms then
    return {'gone', now}
  end
  mine = mine or value == ARGV[i]
end
if not mine then
  return {'gone', now}
end
if keep == 0 then
  redis.call('DEL', KEYS[1])
elseif tonumber(value) > now_ms + keep then
  local deadline = string.format('%.0f', now_ms + keep)
  redis.call('GETSET', KEYS[1], deadline)
  redis.call('PEXPIREAT', KEYS[1], deadline + ARGV[2])
end
return {'held', now}
