-- redisson_renew: sets the expiry of a lock of Redisson that the caller holds. Never creates a key or a field.
--
-- KEYS[1] lock key            a hash with one field and an expiry: holder -> how often it holds the lock
-- ARGV[1] owner               the field that the caller has written
-- ARGV[2] ttl                 milliseconds from now
--
-- Returns, with the server's time in microseconds as second element. The holder is the field of the hash,
-- cut to 200 bytes, or the type of the key if it is no hash of one field. Without the key there is none:
--   held  now                 the lease is extended
--   gone  now  holder         the caller does not hold the lock
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua redisson_renew.lua) \
--     stock:17 , me 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local has, refused, is_wrong_type = attempt('HEXISTS', KEYS[1], ARGV[1])
if has == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'held', now}
end
if refused and not is_wrong_type then
  return refused
end
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' then
  return {'gone', now}
end
if found == 'hash' and redis.call('HLEN', KEYS[1]) == 1 then
  found = string.sub(redis.call('HKEYS', KEYS[1])[1], 1, 200)
end
return {'gone', now, found}
