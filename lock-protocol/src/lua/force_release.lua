-- force_release: takes the lock from its holder, for an operator.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that yields to other clients
-- KEYS[5] holders             a zset while several hold K: "<owner id> <number> <label>" -> end of the lease
-- ARGV[1] mode                "revoke" keeps K locked without an owner until its lease ends, and frees a K whose
--                             work is done; "now" frees it and grants the next waiter; "grant" only grants a free K, and
--                             continues a call that replied "more"
-- ARGV[2] floor               microseconds: no token may be lower
-- ARGV[3] lead                microseconds: how far a counter's seed lies ahead of the time; 0
-- ARGV[4] label               of the value that a revocation leaves: "revoked by <by>: <reason>"
-- ARGV[5] token               that the lock must have; "" for any
-- ARGV[6] digest              of the foreign value to remove, as an earlier reply gave it; "" removes
--                             none, and "?" returns the digest
-- ARGV[7] seen                what K must hold: "string " and the first 200 bytes of a string, the type of
--                             another value, "none" for no key, "" for anything
--
-- Returns an array, with the server's time in microseconds as second element. Type, remaining and value
-- are those of K before the call:
--   free     now  type  remaining  value            K does not exist
--   changed  now  type  remaining  value            K has another token, or holds something else
--                                                   than `seen`; nothing was changed
--   endless  now  type  remaining  value            K has no expiry, so it cannot be revoked
--   foreign  now  type  remaining  value  digest    another client wrote K; nothing was changed
--   revoked  now  type  remaining  value            K has no owner, and stays locked for `remaining`
--   freed    now  type  remaining  value  granted   K was free or is deleted
-- `granted` is "waiter" when the next waiter holds K now, "none", or "more": K is free, and the first
-- hundred entries were dead and are removed, so call again with the mode "grant". A remaining of -1 is a
-- key without expiry. The value is cut to 200 bytes, "" for a type other than string.
--
-- Paths. This part decides, and force_release_slow.lua frees K and grants the next waiter:
--   1  K differs from what the operator has seen     changed
--   2  mode "grant", and K is held                   freed none
--   3  K is foreign, and its digest is not named     foreign
--   4  mode "revoke", and the work isn't done        free, endless or revoked
--   5  everything else                               force_release_slow.lua
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/frees.lua head/classic.lua attempt.lua group.lua force_release.lua next_token.lua \
--     grant_next.lua force_release_slow.lua) \
--     lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' '{lock:a}:h' , revoke 0 0 'revoked by me' '' '' ''

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
local found = 'string'
if refused then
  if not is_wrong_type then
    return refused
  end
  value, found = '', redis.call('TYPE', KEYS[1]).ok
elseif not value then
  value, found = '', 'none'
end
local remaining = redis.call('PTTL', KEYS[1])
local function reply(word, detail)
  return {word, now, found, remaining, string.sub(value, 1, 200), detail}
end

-- A native lock, or a lock in a dialect that writes an owner id.
local x = '%x%x%x%x'
local uuid = '(' .. x .. x .. '%-' .. x .. '%-' .. x .. '%-' .. x .. '%-' .. x .. x .. x .. ')'
local id, token = string.match(value, '^lk1:' .. uuid .. ' (%d+) %d+ ')
id = id or string.match(value, '^' .. uuid .. ' ')
-- A shared lock: all its holders together.
local groups = group_functions()
local group = found == 'string' and groups.read(value)
if group then
  id, token = 'shared', group.token
end
local nil_id = '00000000-0000-0000-0000-000000000000'

local seen = found == 'string' and 'string ' .. string.sub(value, 1, 200) or found
if ARGV[7] ~= '' and seen ~= ARGV[7] then
  return reply('changed')
end
if ARGV[5] ~= '' and token ~= ARGV[5] then
  return reply('changed')
end
if ARGV[1] == 'grant' then
  if found ~= 'none' then
    return reply('freed', 'none')
  end
elseif found ~= 'none' and not id then
  local digest = ''
  if ARGV[6] ~= '' then
    digest = redis.sha1hex(redis.call('DUMP', KEYS[1]))
  end
  if digest == '' or digest ~= ARGV[6] then
    return reply('foreign', digest)
  end
elseif ARGV[1] ~= 'now' and not (token and id == 'ffffffff-ffff-ffff-ffff-ffffffffffff') then
  if found == 'none' then
    return reply('free')
  end
  if remaining < 0 then
    return reply('endless')
  end
  -- The holder's next renewal finds that it no longer owns K. A lock that has no owner stays as it is.
  if id ~= nil_id then
    local since_ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
    local start = token and 'lk1:' .. nil_id .. ' ' .. token .. ' ' .. since_ms or nil_id
    redis.call('SET', KEYS[1], start .. ' ' .. ARGV[4], 'KEEPTTL')
  end
  return reply('revoked')
end
