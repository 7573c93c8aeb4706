-- deadline_release: deletes the lock if the caller wrote its deadline and the deadline has not passed:
-- after it, another client may be about to take the lock over.
--
-- KEYS[1] lock key            a string: the deadline in milliseconds since the epoch
-- ARGV[1] min_hold            milliseconds for which the key stays locked; 0 deletes it
-- ARGV[2] spare               milliseconds between the deadline and the expiry of the key
-- ARGV[3...] deadlines        that the caller may have written
--
-- Returns, with the server's time in microseconds as second element:
--   held  now                 the caller held the lock
--   gone  now                 the caller does not hold the lock, or one of its deadlines has passed
--
-- By hand, from this folder, with the deadline that the key holds:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua deadline_release.lua) \
--     lock:a , 0 100 1763700000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)
local min_hold = tonumber(ARGV[1])
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused and not is_wrong_type then
  return refused
end
local was_owner = false
for i = 3, #ARGV do
  -- The key may have held this deadline, and another client may have taken the lock over since, with
  -- a deadline that equals one of the caller's that never arrived.
  if tonumber(ARGV[i]) < now_ms then
    return {'gone', now}
  end
  was_owner = was_owner or value == ARGV[i]
end
if not was_owner then
  return {'gone', now}
end
if min_hold == 0 then
  redis.call('DEL', KEYS[1])
elseif tonumber(value) > now_ms + min_hold then
  local deadline = string.format('%.0f', now_ms + min_hold)
  -- The expiry comes twice, as in deadline_renew.lua.
  redis.call('PEXPIREAT', KEYS[1], deadline + ARGV[2])
  redis.call('GETSET', KEYS[1], deadline)
  redis.call('PEXPIREAT', KEYS[1], deadline + ARGV[2])
end
return {'held', now}
