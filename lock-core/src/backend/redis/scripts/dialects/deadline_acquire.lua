#!lua
-- deadline_take: take the lock by SETNX, or from a holder whose deadline has passed by GETSET.
--
-- KEYS[1] lock key            a string: the deadline in milliseconds since the epoch
-- ARGV[1] deadline            until when the lock is to be yours
-- ARGV[2] spare               milliseconds after its deadline in which the key goes by itself, and
--                             until which nobody takes it over
-- ARGV[3] not_after           milliseconds of server time: a later copy of this call does nothing
--
-- Answers with the server's time in microseconds as second element:
--   late     now                       the call came after not_after; nothing was written
--   held     now  remaining            the lock is yours
--   busy     now  remaining  value     somebody holds it, or the value is no deadline
--   foreign  now  type                 the key holds something that is no string
-- Remaining is in milliseconds, of the lock or, where the value is no deadline, of the key, -1
-- for one without expiry. The value is cut to 200 bytes.
--
-- The value is read, and GETSET gives it back, in one script: a loser of ours never moves the
-- winner's deadline, as one does that sends the two commands by themselves.
--
-- By hand, from this folder:
--   redis-cli --eval deadline_take.lua lock:a , $(($(date +%s%3N) + 30001)) 100 9999999999999

local deadline = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
if now_ms > tonumber(ARGV[3]) then
  return {'late', now}
end
if redis.call('SETNX', KEYS[1], ARGV[1]) == 0 then
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  if type(value) == 'table' then
    return {'foreign', now, redis.call('TYPE', KEYS[1]).ok}
  end
  if not string.find(value, '^%d+$') or #value ~= 13 then
    return {'busy', now, redis.call('PTTL', KEYS[1]), string.sub(value, 1, 200)}
  end
  -- Its holder's clock may be behind.
  if value + ARGV[2] >= now_ms then
    return {'busy', now, math.max(value - now_ms, 0), value}
  end
  -- A deadline goes with its time: this is an owner that looks like one.
  local remaining = redis.call('PTTL', KEYS[1])
  if remaining > tonumber(ARGV[2]) then
    return {'busy', now, remaining, value}
  end
  redis.call('GETSET', KEYS[1], ARGV[1])
end
redis.call('PEXPIREAT', KEYS[1], deadline + ARGV[2])
return {'held', now, math.max(deadline - now_ms, 0)}
