-- redisson_acquire: acquires a lock of Redisson, or returns the holder.
--
-- KEYS[1] lock key            a hash with one field and an expiry: holder -> how often it holds the lock
-- KEYS[2] token counter       a string with an integer; only for a lock with fencing tokens
-- ARGV[1] owner               the field that the caller writes
-- ARGV[2] ttl                 milliseconds from now
-- ARGV[3] not_after           milliseconds of server time: a later copy of this call does nothing
--
-- Returns, with the server's time in microseconds as second element:
--   late     now                       the call came after not_after; nothing was written
--   held     now  remaining  token     the caller holds the lock (also if it did before); no token without
--                                      a counter
--   busy     now  remaining  holder    another holder has the lock
--   foreign  now  found                the key is no such lock: its type, or "hash", "read-write lock" or
--                                      "token counter" for one of another shape
-- Remaining is in milliseconds, -1 for a key without expiry. The holder is cut to 200 bytes.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/writes.lua ../head/classic.lua ../attempt.lua redisson_acquire.lua) \
--     stock:17 , me 30000 9999999999999

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[3]) * 1000 then
  return {'late', now}
end
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == 'hash' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  local reply = {'held', now, tonumber(ARGV[2])}
  if KEYS[2] then
    -- First: when the counter is broken, nothing is acquired. A repeated copy gets a greater number, and no
    -- caller has seen the earlier one.
    local token, refused, is_wrong_type = attempt('INCR', KEYS[2])
    if refused then
      local text = refused.err
      if is_wrong_type or string.find(text, 'not an integer', 1, true)
          or string.find(text, 'overflow', 1, true) then
        return {'foreign', now, 'token counter'}
      end
      return refused
    end
    -- Lua counts up to 2^53 exactly.
    token = tonumber(token)
    if not token or token < 1 or token > 9007199254740991 then
      return {'foreign', now, 'token counter'}
    end
    reply[4] = token
  end
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  local _, not_expiring = attempt('PEXPIRE', KEYS[1], ARGV[2])
  if not_expiring then
    -- The server does not undo the first write. A new key would have no expiry; that of a repeated call has one.
    if found == 'none' then
      attempt('HDEL', KEYS[1], ARGV[1])
    end
    return not_expiring
  end
  return reply
end
if found ~= 'hash' then
  return {'foreign', now, found}
end
-- Counted first: a large hash, which is no lock, must not be read.
if redis.call('HLEN', KEYS[1]) ~= 1 then
  return {'foreign', now, redis.call('HEXISTS', KEYS[1], 'mode') == 1 and 'read-write lock' or 'hash'}
end
return {'busy', now, redis.call('PTTL', KEYS[1]), string.sub(redis.call('HKEYS', KEYS[1])[1], 1, 200)}
