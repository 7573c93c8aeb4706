#!lua
-- acquire: take the lock, or stand in its queue, or say who holds it.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that lets other clients in
-- ARGV[1] nonce               who asks
-- ARGV[2] ttl                 milliseconds
-- ARGV[3] floor               microseconds: no token may be lower
-- ARGV[4] not_after           milliseconds of server time: a later copy of this call does nothing
-- ARGV[5] label               for people
-- ARGV[6] entry               "<nonce> <mode> <lease ms> <gone_at ms> <channel> <label>", or ""
--                             to ask once without standing in the queue
-- ARGV[7...] entries that the same nonce stood in the queue with before
--
-- Answers with the server's time in microseconds as second element:
--   late     now                              the call came after not_after; nothing was written
--   held     now  token  remaining            the lock is yours (also when it was before)
--   queued   now  rank   remaining  value     you wait; remaining and value are the holder's
--   busy     now  remaining  value            somebody holds it, or goes before you
--   foreign  now  type                        the key holds something that is no string
-- A remaining of -1 is a key without expiry. The value is cut to 200 bytes, "" during grace.
--
-- By hand, from this folder (drive.lua stands where its name does below):
--   redis-cli --eval <(sed '/^-- include drive.lua$/r drive.lua' acquire.lua) \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 30000 0 9999999999999 by-hand ''

local nonce, ttl, floor, label, entry = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5], ARGV[6]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)

-- A copy that was lost, resent or overtaken must not come back to life.
if now_ms > tonumber(ARGV[4]) then
  return {'late', now}
end

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  return {'foreign', now, redis.call('TYPE', KEYS[1]).ok}
end

local owner -- who gets the lock in this call: nonce, lease, label and, from the queue, channel
if value then
  -- Asking again is having asked once: same token, and at least the ttl that was asked for.
  if string.sub(value, 1, 41) == 'lk1:' .. nonce .. ' ' then
    local remaining = redis.call('PTTL', KEYS[1])
    if remaining < ttl then
      redis.call('PEXPIRE', KEYS[1], ttl)
      remaining = ttl
    end
    return {'held', now, string.match(value, '^%S+ (%S+)'), remaining}
  end
  if entry == '' then
    return {'busy', now, redis.call('PTTL', KEYS[1]), string.sub(value, 1, 200)}
  end
elseif redis.call('EXISTS', KEYS[2]) == 0 then
  owner = {nonce = nonce, lease = ttl, label = label}
end

local queue, moved = not owner, false
if queue and entry ~= '' and not redis.call('ZSCORE', KEYS[2], entry) then
  -- Order of arrival: behind the last, or where an older entry of the same nonce stood.
  local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
  local score = last[2] and last[2] + 1 or 1
  for i = 7, #ARGV do
    local earlier = redis.call('ZSCORE', KEYS[2], ARGV[i])
    if earlier then
      score = math.min(score, tonumber(earlier))
      redis.call('ZREM', KEYS[2], ARGV[i])
    end
  end
  redis.call('ZADD', KEYS[2], score, entry)
end

-- include drive.lua

if owner and owner.nonce == nonce then
  return {'held', now, owner.token, owner.lease}
end
local remaining = value and redis.call('PTTL', KEYS[1]) or grace
value = value and string.sub(value, 1, 200) or ''
if entry == '' then
  return {'busy', now, remaining, value}
end
-- The queue outlives the lock and the last look at it by ten minutes, the longest a waiter
-- stays silent.
redis.call('PEXPIRE', KEYS[2], math.max(remaining, 0) + 600000)
return {'queued', now, redis.call('ZRANK', KEYS[2], entry), remaining, value}
