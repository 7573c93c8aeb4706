-- redisson_force_release: takes a lock of Redisson from its holder, for an operator.
--
-- KEYS[1] lock key            a hash with one field and an expiry: holder -> how often it holds the lock
-- KEYS[2] token counter       a string with an integer; only for a lock with fencing tokens
-- ARGV[1] mode                "revoke" keeps the key locked without an owner until its lease ends; "now" frees
--                             it and notifies all waiters
-- ARGV[2] field               that a revocation leaves: "<nil id> revoked by <by>: <reason>"
-- ARGV[3] token               that the lock must have; "" for any
-- ARGV[4] digest              of the foreign value to remove, as an earlier reply gave it; "" removes none, and
--                             "?" returns the digest
-- ARGV[5] seen                what the key must hold: "string " and the first 200 bytes of the holder, the type
--                             of another value, "none" for no key, "" for anything
-- ARGV[6] channel             on which waiters of the lock listen
-- ARGV[7...] commands         that publish: PUBLISH, and in a cluster SPUBLISH too
--
-- Returns an array, with the server's time in microseconds as second element. Type, remaining and value are those
-- of the key before the call: the type is "lock" for a lock, and the value is its holder, cut to 200 bytes:
--   free     now  type  remaining  value            the key does not exist
--   changed  now  type  remaining  value            the lock has another token, or the key holds something else
--                                                   than `seen`; nothing was changed
--   endless  now  type  remaining  value            the key has no expiry, so it cannot be revoked
--   foreign  now  type  remaining  value  digest    another client wrote the key; nothing was changed
--   revoked  now  type  remaining  value            the key has no owner, and stays locked for `remaining`
--   freed    now  type  remaining  value  granted   the key was free or is deleted; granted is always "none"
-- A remaining of -1 is a key without expiry.
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/frees.lua ../head/classic.lua ../attempt.lua redisson_force_release.lua) \
--     stock:17 , now '' '' '' '' redisson_lock__channel:{stock:17} PUBLISH

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found, holder = redis.call('TYPE', KEYS[1]).ok
if found == 'hash' and redis.call('HLEN', KEYS[1]) == 1 then
  found, holder = 'lock', redis.call('HKEYS', KEYS[1])[1]
end
local remaining = redis.call('PTTL', KEYS[1])
local function reply(word, detail)
  return {word, now, found, remaining, string.sub(holder or '', 1, 200), detail}
end

local seen = holder and 'string ' .. string.sub(holder, 1, 200) or found
if ARGV[5] ~= '' and seen ~= ARGV[5] then
  return reply('changed')
end
-- Each grant takes the next token, so that of the holder is the last one.
if ARGV[3] ~= '' and not (holder and KEYS[2] and attempt('GET', KEYS[2]) == ARGV[3]) then
  return reply('changed')
end
local x = '%x%x%x%x'
local uuid = '^' .. x .. x .. '%-' .. x .. '%-' .. x .. '%-' .. x .. '%-' .. x .. x .. x .. ' '
if found ~= 'none' and not (holder and string.find(holder, uuid)) then
  local digest = ''
  if ARGV[4] ~= '' then
    digest = redis.sha1hex(redis.call('DUMP', KEYS[1]))
  end
  if digest == '' or digest ~= ARGV[4] then
    return reply('foreign', digest)
  end
elseif ARGV[1] ~= 'now' then
  if found == 'none' then
    return reply('free')
  end
  if remaining < 0 then
    return reply('endless')
  end
  -- The holder's next renewal finds that it no longer owns the lock. A lock that has no owner stays as it is.
  if not string.find(holder, '^00000000%-0000%-0000%-0000%-000000000000 ') then
    redis.call('HSET', KEYS[1], ARGV[2], 1)
    redis.call('HDEL', KEYS[1], holder)
  end
  return reply('revoked')
end

redis.call('DEL', KEYS[1])
for i = 7, #ARGV do
  attempt(ARGV[i], ARGV[6], '0')
end
return reply('freed', 'none')
