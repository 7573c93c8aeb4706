-- acquire_all: acquires the locks of a set in their order, up to the first one that the caller does not get.
--
-- KEYS[1...] keys             those of acquire.lua for the first lock, then those for the second one, ..
-- ARGV[1] keys                how many keys a lock has
-- ARGV[2] not_after           milliseconds of server time: a later copy of this call does nothing
-- ARGV[3] mode                "go" keeps what it gets. Each lock has an entry, so the first busy one is queued.
--                             "all" gets all locks or none, and no lock has an entry
-- ARGV[4...] locks            for each lock: how many arguments follow, and the arguments of acquire.lua
--
-- Returns an array of strings:
--   replies  each             those of acquire.lua, up to the first that is not `held`. A lock without a
--                             reply was not tried
--   late     now              the only reply: the call came after not_after, and nothing was written
--   undone   index  reply     mode "all": this lock, counted from 1, was not acquired, and nothing is left
--   kept     index  reply     as `undone`, but a lock could not be released: cancel each of them
-- An error of one lock is the reply `error  text`. The other locks keep what they have then.

-- Asked once, and before anything else: a late copy must not release what the caller uses by now.
local time = redis.call('TIME')
if time[1] * 1000000 + time[2] >= (ARGV[2] + 1) * 1000 then
  return {'late ' .. time[1] .. ' ' .. time[2]}
end

local locks = each_lock(4)
local replies = {}
for index, lock in ipairs(locks) do
  -- The time goes on within a script. A lock that is late by itself would undo what an earlier copy had got.
  lock.args[4] = '9007199254740991'
  local reply = run(acquire, lock)
  replies[index] = reply
  if string.sub(reply, 1, 5) ~= 'held ' then
    if ARGV[3] ~= 'all' then
      break
    end
    -- All of them, also those behind this one: an earlier copy of this call may have got them.
    local verdict = 'undone'
    for _, other in ipairs(locks) do
      local args = other.args
      local undo = {args[1], args[3], '0', args[7] or '0', '0', args[5], args[8] or ''}
      if string.sub(run(release, {keys = other.keys, args = undo}), 1, 6) == 'error ' then
        verdict = 'kept'
      end
    end
    return {verdict, string.format('%d', index), reply}
  end
end
return replies
