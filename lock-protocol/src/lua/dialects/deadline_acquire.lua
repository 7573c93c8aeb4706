-- deadline_acquire: acquires the lock by SETNX, or by GETSET from a holder whose deadline has
-- passed.
--
-- KEYS[1] lock key            a string: the deadline in milliseconds since the epoch
-- ARGV[1] deadline            end of the lease: milliseconds since the epoch
-- ARGV[2] spare               milliseconds between the deadline and the expiry of the key; until
--                             then no caller takes the lock over
-- ARGV[3] not_after           milliseconds of server time: a later copy of this call does nothing
--
-- Returns, with the server's time in microseconds as second element:
--   late     now                       the call came after not_after; nothing was written
--   held     now  remaining            the caller holds the lock
--   busy     now  remaining  value     another holder has the lock, or the value is
--                                      no deadline
--   foreign  now  type                 the key holds something that is no string
-- Remaining is in milliseconds: of the lock or, if the value is no deadline, of the key; -1 is a key
-- without expiry. The value is cut to 200 bytes.
--
-- One script reads the value and runs GETSET: a caller that loses never moves the winner's deadline,
-- as a client does that sends the two commands one by one.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/writes.lua ../head/classic.lua ../attempt.lua deadline_acquire.lua) \
--     lock:a , $(($(date +%s%3N) + 30001)) 100 9999999999999

local deadline = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
if now_ms > tonumber(ARGV[3]) then
  return {'late', now}
end
if redis.call('SETNX', KEYS[1], ARGV[1]) == 0 then
  local value, refused, is_wrong_type = attempt('GET', KEYS[1])
  if refused and not is_wrong_type then
    return refused
  end
  if is_wrong_type then
    return {'foreign', now, redis.call('TYPE', KEYS[1]).ok}
  end
  if not string.find(value, '^%d+$') or #value ~= 13 then
    return {'busy', now, redis.call('PTTL', KEYS[1]), string.sub(value, 1, 200)}
  end
  -- The clock of the holder may be behind.
  if value + ARGV[2] >= now_ms then
    return {'busy', now, math.max(value - now_ms, 0), value}
  end
  -- The key of a deadline expires with it: this value is an owner that looks like a deadline.
  local remaining = redis.call('PTTL', KEYS[1])
  if remaining > tonumber(ARGV[2]) then
    return {'busy', now, remaining, value}
  end
  redis.call('GETSET', KEYS[1], ARGV[1])
end
local _, not_expiring = attempt('PEXPIREAT', KEYS[1], deadline + ARGV[2])
if not_expiring then
  -- The server does not undo the first write, and the key would have no expiry. The holder before, if there was one,
  -- lost the lock when its deadline passed.
  attempt('DEL', KEYS[1])
  return not_expiring
end
return {'held', now, math.max(deadline - now_ms, 0)}
