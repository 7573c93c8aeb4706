-- redisson_release: releases a lock of Redisson that the caller holds, or lets it expire after min_hold, and
-- notifies all waiters.
--
-- KEYS[1] lock key            a hash with one field and an expiry: holder -> how often it holds the lock
-- ARGV[1] owner               the field that the caller has written
-- ARGV[2] min_hold            milliseconds for which the key stays locked; 0 frees it
-- ARGV[3] no_owner            the field of the key during min_hold
-- ARGV[4] channel             on which waiters of the lock listen
-- ARGV[5...] commands         that publish: PUBLISH, and in a cluster SPUBLISH too
--
-- Returns, with the server's time in microseconds as second element:
--   held  now  receivers  refused
--                             the caller held the lock, and so many subscriptions got the message; then the error
--                             of a command that the server refused, if there is one
--   gone  now                 the caller does not hold the lock; no message was sent
--
-- The channel is no key: the user needs no right to a key of that name.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua redisson_release.lua) \
--     stock:17 , me 0 nil redisson_lock__channel:{stock:17} PUBLISH

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local has, refused, is_wrong_type = attempt('HEXISTS', KEYS[1], ARGV[1])
if refused and not is_wrong_type then
  return refused
end
if has ~= 1 then
  return {'gone', now}
end
if tonumber(ARGV[2]) > 0 then
  redis.call('HSET', KEYS[1], ARGV[3], 1)
  if LEGACY then
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 or left > tonumber(ARGV[2]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    end
  else
    redis.call('PEXPIRE', KEYS[1], ARGV[2], 'LT')
  end
end
-- Only this field: a client with another kind of lock may have added its own.
redis.call('HDEL', KEYS[1], ARGV[1])
-- Also when the key stays locked: a waiter sleeps until the end of the lease that it has seen, and now sees
-- the shorter one.
local receivers, message_refused = 0
for i = 5, #ARGV do
  local published, error_reply = attempt(ARGV[i], ARGV[4], '0')
  if not error_reply then
    receivers = receivers + (tonumber(published) or 0)
  elseif not string.find(error_reply.err, 'nknown', 1, true) then
    -- A server before 7.0 has no SPUBLISH, and no client that listens to it.
    message_refused = ARGV[i] .. ': ' .. error_reply.err
  end
end
-- Without an error, the array ends before it.
return {'held', now, receivers, message_refused}
