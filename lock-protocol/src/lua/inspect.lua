-- inspect: reads the lock, its holders and the first waiters of its queue. Changes nothing.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] holders             a zset while several hold K: "<owner id> <number> <label>" -> end of the lease
-- ARGV[1] limit               the most entries that the reply has
-- ARGV[2] digest              "digest" identifies a hash, for a user with the right to run DUMP; "" does not
-- ARGV[3] member limit        the most members that the reply has
--
-- Returns an array, with the server's time in microseconds as second element:
--   free     now  total  entries                    K does not exist
--   held     now  total  remaining  value  entries  K holds a string: a lock, or a foreign value
--   shared   now  total  remaining  value  members  shown  ends  entries
--                                                   K holds a shared lock
--   foreign  now  total  type  digest  entries      K holds something that is no string
-- `total` is the number of all entries. `members` is the number of all members that are alive, and `shown` the
-- number of those that follow: each is its text, and the rest of its lease in milliseconds (`ends`). A remaining of -1 is a key without expiry. The value is cut to
-- 200 bytes. It may have spaces and any other bytes. The digest is that of a hash, as other lock libraries
-- write it, and empty for other types and where it is not asked for: DUMP reads the whole value.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/reads.lua head/classic.lua attempt.lua inspect.lua) \
--     lock:a '{lock:a}:q' '{lock:a}:h' , 100 '' 100

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused and not is_wrong_type then
  return refused
end

-- The number of entries, by the commands for which every user of locks has the right.
local last = redis.call('ZRANGE', KEYS[2], -1, -1)[1]
local total = last and redis.call('ZRANK', KEYS[2], last) + 1 or 0

local reply
if is_wrong_type then
  local found, digest = redis.call('TYPE', KEYS[1]).ok, ''
  if found == 'hash' and ARGV[2] == 'digest' then
    digest = redis.sha1hex(redis.call('DUMP', KEYS[1]))
  end
  reply = {'foreign', now, total, found, digest}
elseif value and string.sub(value, 1, 4) == 'lks:' then
  -- By ZRANGE and ZRANK too. A member is alive up to the end of its lease.
  local now_ms = math.floor(now / 1000)
  local alive = redis.call('ZRANGE', KEYS[3], string.format('%.0f', now_ms), '+inf', 'BYSCORE',
    'LIMIT', 0, ARGV[3], 'WITHSCORES')
  local members = 0
  if alive[1] then
    local newest = redis.call('ZRANGE', KEYS[3], -1, -1)[1]
    members = redis.call('ZRANK', KEYS[3], newest) - redis.call('ZRANK', KEYS[3], alive[1]) + 1
  end
  reply = {'shared', now, total, redis.call('PTTL', KEYS[1]), string.sub(value, 1, 200), members, #alive / 2}
  for i = 1, #alive, 2 do
    reply[#reply + 1] = alive[i]
    reply[#reply + 1] = alive[i + 1] - now_ms
  end
elseif value then
  reply = {'held', now, total, redis.call('PTTL', KEYS[1]), string.sub(value, 1, 200)}
else
  reply = {'free', now, total}
end
for _, entry in ipairs(redis.call('ZRANGE', KEYS[2], 0, ARGV[1] - 1)) do
  reply[#reply + 1] = entry
end
return reply
