-- redisson_inspect: reads a lock of Redisson. Changes nothing.
--
-- KEYS[1] lock key            a hash with one field and an expiry: holder -> how often it holds the lock
--
-- Returns an array, with the server's time in microseconds as second element:
--   free     now                       the key does not exist
--   held     now  remaining  holder    the key is a lock
--   foreign  now  found                the key is no such lock: its type, or "hash" or "read-write lock" for a
--                                      hash of another shape
-- A remaining of -1 is a key without expiry. The holder is cut to 200 bytes.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/reads.lua ../head/classic.lua redisson_inspect.lua) stock:17

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' then
  return {'free', now}
end
if found == 'hash' and redis.call('HLEN', KEYS[1]) ~= 1 then
  found = redis.call('HEXISTS', KEYS[1], 'mode') == 1 and 'read-write lock' or 'hash'
elseif found == 'hash' then
  return {'held', now, redis.call('PTTL', KEYS[1]), string.sub(redis.call('HKEYS', KEYS[1])[1], 1, 200)}
end
return {'foreign', now, found}
