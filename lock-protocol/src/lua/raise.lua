-- raise: writes the fencing token of a quorum to a server whose key the caller holds. The second round of
-- an acquisition at several independent servers.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] fencing counter     a string with an integer
-- ARGV[1] owner id            of the caller
-- ARGV[2] token               the highest one of the first round, as decimal text
-- ARGV[3] exact               "exact": the key gets the token although it has a higher one; may be missing
--
-- Returns one string of words, separated by spaces, as renew.lua does:
--   held  now  token  remaining   neither K's token nor the counter is lower now
--   gone  now                     the caller does not hold the lock; nothing was written
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/writes.lua head/classic.lua attempt.lua raise.lua) \
--     lock:a '{lock:a}:f' , 6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 1700000000000000

local value, refused, is_wrong_type = attempt('GET', KEYS[1])
local time = redis.call('TIME')
local stamp = time[1] .. ' ' .. time[2]
if refused and not is_wrong_type then
  return refused
end
if type(value) ~= 'string' or string.sub(value, 1, 41) ~= 'lk1:' .. ARGV[1] .. ' ' then
  return 'gone ' .. stamp
end

-- Above 2^53 a Lua number is not exact, so the texts are compared: the longer one is higher.
local function is_lower(one, other)
  return #one < #other or #one == #other and one < other
end

local token = ARGV[2]
if is_lower(redis.call('GET', KEYS[2]) or '', token) then
  redis.call('SET', KEYS[2], token, 'EX', 86400)
end
local own, rest = string.match(value, '^(%S+)(.*)$', 42)
-- Raises to two tokens may arrive in either order.
if is_lower(own, token) or ARGV[3] == 'exact' then
  redis.call('SET', KEYS[1], string.sub(value, 1, 41) .. token .. rest, 'KEEPTTL')
end
return 'held ' .. stamp .. ' ' .. token .. string.format(' %.0f', redis.call('PTTL', KEYS[1]))
