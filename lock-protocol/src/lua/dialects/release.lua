-- release: deletes a lock that the caller holds, or lets it expire after min_hold.
--
-- KEYS[1] lock key            a string with an expiry
-- ARGV[1] owner               the value that the caller has written
-- ARGV[2] min_hold            milliseconds for which the key stays locked; 0 deletes it
-- ARGV[3] no_owner            the value of the key during min_hold
--
-- Returns, with the server's time in microseconds as second element:
--   held  now                 the caller held the lock
--   gone  now                 the caller does not hold the lock
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua release.lua) lock:a , me 0 nil

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused and not is_wrong_type then
  return refused
end
if value ~= ARGV[1] then
  return {'gone', now}
end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
else
  -- Without an owner: a renewal that this call has overtaken must not extend the lease.
  redis.call('SET', KEYS[1], ARGV[3], 'KEEPTTL')
  if LEGACY then
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 or left > tonumber(ARGV[2]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
  else
    redis.call('PEXPIRE', KEYS[1], ARGV[2], 'LT')
  end
end
return {'held', now}
