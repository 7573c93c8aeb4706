-- next_token: sets the local variable `token`, as text.
--
-- Not a script of its own: acquire.lua and grant_next.lua include these lines. They are no function,
-- because a call costs an uncontended acquire 0.1 us.
-- In: KEYS[3] (counter); floor and lead (text, microseconds); now (a number, microseconds).
local number, token = redis.call('INCR', KEYS[3])
if number - floor < 0 then
  -- The counter is new, or was lost or rolled back: continue from the time. It ends five minutes after
  -- the time of its seed, so that names that are used once leave nothing. The next seed is higher, also
  -- if the clock was set back since the floor was read.
  number = math.max(tonumber(floor), now + lead)
  token = string.format('%.0f', number)
  redis.call('SET', KEYS[3], token, 'PXAT', string.format('%.0f', math.floor(number / 1000) + 300000))
elseif number > 99999999 and number < 9007199254740992 then
  -- In two parts, each less than 2^31: '%.0f' costs 0.2 us more, and '%d' of the whole number is wrong
  -- where a long of C has 32 bits.
  token = string.format('%d%08d', number / 100000000, number % 100000000)
else
  -- Above 2^53 a Lua number is not exact; the text is.
  token = redis.call('GET', KEYS[3])
end
