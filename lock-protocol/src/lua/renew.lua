-- renew: extends the lease of a lock that the caller holds. Never creates a key, and never shortens
-- the lease: a holder relies on the end that an earlier renewal returned.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] holders             of a shared lock: a zset. Missing for an exclusive lock
-- ARGV[1] owner id            of the caller
-- ARGV[2] ttl                 milliseconds from now
-- ARGV[3] any text            writes the expiry also where it stays: WAIT counts writes only. Optional; "" if
--                             it is missing and others follow
-- ARGV[4] label               of the caller's acquire, for a shared lock
-- ARGV[5] kind                of a shared lock, as in acquire.lua
--
-- Returns one string. Its words are separated by spaces. `now` is two words: the seconds of the
-- server's time, and the microseconds in the second.
--   held  now  token  remaining   the lease is extended
--   gone  now  value              the caller does not hold the lock. The value is that of K, cut to
--                                 200 bytes, or its type if it is no string. Without K there is no value
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/frees.lua head/classic.lua attempt.lua group.lua renew.lua) lock:a , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 30000

-- By Lua's pcall: see attempt.lua.
local is_read, value = pcall(redis.call, 'GET', KEYS[1])
local time = redis.call('TIME')
local stamp = time[1] .. ' ' .. time[2]
if is_read and type(value) == 'string' and string.sub(value, 1, 41) == 'lk1:' .. ARGV[1] .. ' ' then
  local remaining = ARGV[2]
  if LEGACY or redis.call('PEXPIRE', KEYS[1], remaining, 'GT') == 0 then
    -- The lease is longer, or the key has no expiry.
    remaining = redis.call('PTTL', KEYS[1])
    if remaining < tonumber(ARGV[2]) then
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
      remaining = ARGV[2]
    elseif ARGV[3] then
      redis.call('PEXPIRE', KEYS[1], remaining)
    end
  end
  return 'held ' .. stamp .. ' ' .. string.match(value, '^%S+ (%S+)') .. string.format(' %.0f', remaining)
end
if KEYS[2] and is_read and type(value) == 'string' and string.sub(value, 1, 4) == 'lks:' then
  local groups, now_ms = group_functions(KEYS[2]), time[1] * 1000 + math.floor(time[2] / 1000)
  local group = groups.read(value)
  local _, weight = groups.read_kind(ARGV[5])
  local left = group and groups.raise_members(now_ms, ARGV[2], ARGV[1], weight, ARGV[4])
  if left then
    if ARGV[3] ~= '' then
      -- Before Redis 7.2, PTTL and PEXPIRE each read the clock, so the end may come later by the time between them,
      -- but never earlier.
      local key_left = redis.call('PTTL', KEYS[1])
      if key_left >= 0 then
        redis.call('PEXPIRE', KEYS[1], key_left)
      end
    end
    return 'held ' .. stamp .. ' ' .. group.token .. string.format(' %.0f', left)
  end
end
if not is_read then
  -- Once more, for its error.
  local _, refused, is_wrong_type = attempt('GET', KEYS[1])
  if refused and not is_wrong_type then
    return refused
  end
  value = redis.call('TYPE', KEYS[1]).ok
end
return 'gone ' .. stamp .. (value and ' ' .. string.sub(value, 1, 200) or '')
