-- next_token: increments the fencing counter, and returns its number as text.
--
-- A part, not a script of its own: it stands in front of acquire.lua's fast path, and behind the fast paths of
-- release.lua and force_release.lua, which need a token only for a waiter.
--
-- Arguments, in microseconds: floor (no token may be lower) and lead (how far a seed lies ahead of the time), as the
-- client sent them, and now, a number. The counter is KEYS[3].
local function next_token(floor, lead, now)
  local number = redis.call('INCR', KEYS[3])
  if number - floor < 0 then
    -- The counter is new, or was lost or rolled back: continue from the time. It ends five minutes after
    -- the time of its seed, so that names that are used once leave nothing. The next seed is higher, also
    -- if the clock was set back since the floor was read.
    local is_new = number == 1
    number = math.max(tonumber(floor), now + lead)
    local token = string.format('%.0f', number)
    local is_done, refused = false, 'the epoch or fencing_lead puts the fencing token beyond any time'
    if number < 9e18 then
      is_done, refused = pcall(redis.call, 'SET', KEYS[3], token, 'PXAT',
        string.format('%.0f', math.floor(number / 1000) + 300000))
    end
    if not is_done then
      -- The server does not undo INCR, and a new counter would have no expiry.
      if is_new then
        redis.call('DEL', KEYS[3])
      end
      error(refused, 0)
    end
    return token
  elseif number > 99999999 and number < 9007199254740992 then
    -- In two parts, each less than 2^31: '%.0f' costs 0.2 us more, and '%d' of the whole number is wrong
    -- where a long of C has 32 bits.
    return string.format('%d%08d', number / 100000000, number % 100000000)
  end
  if number >= 9e18 then
    -- No clock and no lead gives such a number (the year is 287000), and a few steps further INCR fails for everyone. Its
    -- last good value is unknown, so an operator has to decide: the client's error says what to delete.
    redis.call('DECR', KEYS[3])
    error('the fencing counter is beyond any time', 0)
  end
  -- Above 2^53 a Lua number is not exact; the text is.
  return redis.call('GET', KEYS[3])
end
