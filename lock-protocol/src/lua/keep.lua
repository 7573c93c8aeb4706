-- keep: locks K without an owner when its owner releases it.
--
-- A part, not a script of its own: it stands in front of release_slow.lua and drop.lua.
--
-- Arguments of keep:
--   value  of K, which the caller owns
--   hold   milliseconds for which K stays locked; or "done <period>": the owner's work has succeeded, and K stays
--          locked for this many milliseconds since it was granted
--   time   the reply to TIME
-- Hands back the new value of K; false if the period is over, and K is deleted.
--
-- A renewal or an acquire that this call has overtaken doesn't match the owner id that K gets, so it can neither
-- extend the lease nor get the lock. Readers tell both ids apart: the nil id says that K is kept, and the highest id
-- that the work is done.
local function keep(value, hold, time)
  local id, period = '00000000-0000-0000-0000-000000000000', string.match(hold, '^done (%d+)$')
  if period then
    -- By the server's clock, because the copy of a release may come late. If the clock was set back, since is in the
    -- future, and K must not stay locked for longer than the period.
    local since = string.match(value, '^%S+ %d+ (%d+) ')
    local left = math.min(since + period - time[1] * 1000 - math.floor(time[2] / 1000), tonumber(period))
    if left <= 0 then
      redis.call('DEL', KEYS[1])
      return false
    end
    id, hold = 'ffffffff-ffff-ffff-ffff-ffffffffffff', string.format('%.0f', left)
  end
  value = 'lk1:' .. id .. ' ' .. string.sub(value, 42)
  redis.call('SET', KEYS[1], value, 'PX', hold)
  return value
end
