-- release_all: releases the locks of a set.
--
-- KEYS[1...] keys             those of release.lua for the first lock, then those for the second one, ..
-- ARGV[1] keys                how many keys a lock has
-- ARGV[2...] locks            for each lock: how many arguments follow, and the arguments of release.lua
--
-- Returns an array of strings:
--   replies  each             those of release.lua, one for each lock
-- An error of one lock is the reply `error  text`, and the others are released all the same.

local replies = {}
for index, lock in ipairs(each_lock(2)) do
  replies[index] = run(release, lock)
end
return replies
