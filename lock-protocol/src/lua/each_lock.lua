-- each_lock: separates the keys and arguments of the locks of a set.
--
-- A part, not a script of its own: it stands in front of acquire_all.lua, and behind the functions `acquire` and
-- `release`, which are all parts of those scripts with KEYS and ARGV as parameters.

-- Returns the keys and arguments of each lock. Those of the first one begin at this argument.
local function each_lock(at)
  local locks, count = {}, tonumber(ARGV[1])
  for first = 1, #KEYS, count do
    local lock = {keys = {}, args = {}}
    for i = 0, count - 1 do
      lock.keys[i + 1] = KEYS[first + i]
    end
    for i = 1, tonumber(ARGV[at]) do
      lock.args[i] = ARGV[at + i]
    end
    at = at + #lock.args + 1
    locks[#locks + 1] = lock
  end
  return locks
end

-- Runs acquire.lua or release.lua for a lock. Returns its reply, or its error as a text.
local function run(script, lock)
  local is_done, reply = pcall(script, lock.keys, lock.args)
  if is_done and type(reply) ~= 'table' then
    return reply
  end
  return 'error ' .. (type(reply) == 'table' and reply.err or tostring(reply))
end
