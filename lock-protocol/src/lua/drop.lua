-- drop: frees the lock key of a slot that moves, and touches no other key.
--
-- While a slot moves, its node runs no script with several keys unless all of them exist. A release has
-- four. This one has the lock key alone, so the node runs it, or names the node that has the key. The full
-- release follows when the slot has moved: it hands over to the next waiter.
--
-- KEYS[1] lock key            a string with an expiry
-- ARGV[1] owner id            of the caller
-- ARGV[2] min_hold            milliseconds for which the lock stays locked without an owner; 0 frees it. "done
--                             <period>" as in release.lua
--
-- Returns one string. `now` is two words: the seconds of the server's time, and the microseconds in the
-- second.
--   released  now             the caller held the lock
--   gone      now             the caller did not hold the lock
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/frees.lua head/classic.lua attempt.lua keep.lua drop.lua) \
--     lock:a , 6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 0

local time = redis.call('TIME')
local stamp = ' ' .. time[1] .. ' ' .. time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused and not is_wrong_type then
  return refused
end
if type(value) ~= 'string' or string.sub(value, 1, 41) ~= 'lk1:' .. ARGV[1] .. ' ' then
  return 'gone' .. stamp
end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  keep(value, ARGV[2], time)
end
return 'released' .. stamp
