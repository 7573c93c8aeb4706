-- setnx_expire: acquires the lock by SETNX and EXPIRE in one script, or returns the holder.
--
-- KEYS[1] lock key            a string with an expiry
-- ARGV[1] owner               the value that the caller writes
-- ARGV[2] ttl                 seconds
-- ARGV[3] not_after           milliseconds of server time: a later copy of this call does nothing
--
-- Returns, with the server's time in microseconds as second element:
--   late     now                       the call came after not_after; nothing was written
--   held     now  remaining            the caller holds the lock (also if it did before)
--   busy     now  remaining  value     another holder has the lock
--   foreign  now  type                 the key holds something that is no string
-- Remaining is in milliseconds, -1 for a key without expiry. The value is cut to 200 bytes.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/writes.lua ../head/classic.lua ../attempt.lua setnx_expire.lua) \
--     lock:a , me 30 9999999999999

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[3]) * 1000 then
  return {'late', now}
end
if redis.call('SETNX', KEYS[1], ARGV[1]) == 1 then
  local _, not_expiring = attempt('EXPIRE', KEYS[1], ARGV[2])
  if not_expiring then
    -- The server does not undo the first write, and a key without an expiry would stay locked forever.
    attempt('DEL', KEYS[1])
    return not_expiring
  end
  return {'held', now, ARGV[2] * 1000}
end
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused and not is_wrong_type then
  return refused
end
if is_wrong_type then
  return {'foreign', now, redis.call('TYPE', KEYS[1]).ok}
end
local remaining = redis.call('PTTL', KEYS[1])
if value == ARGV[1] then
  return {'held', now, remaining}
end
return {'busy', now, remaining, string.sub(value, 1, 200)}
