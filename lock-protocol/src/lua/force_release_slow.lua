-- force_release_slow: frees K and grants the next waiter, for an operator.
--
-- A part, not a script of its own: it stands behind force_release.lua, next_token.lua and grant_next.lua, and uses the
-- first one's time, now, groups and reply.

-- Before everything that can fail: a broken queue or counter is reported, and K is free.
redis.call('DEL', KEYS[1])
local granted = 'none'
if redis.call('EXISTS', KEYS[2]) == 1 then
  local command = {time = time, now = now, floor = ARGV[2], lead = ARGV[3], groups = groups}
  local _, any, _, _, more = grant_next(command, false, true)
  granted = any and 'waiter' or more and 'more' or granted
end
return reply('freed', granted)
