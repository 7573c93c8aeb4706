-- repair: gives an expiry to a lock whose holder died before it could set one.
--
-- KEYS[1] lock key            a string without an expiry
-- ARGV[1] owner               the value that a poll saw: at most the first 200 bytes
-- ARGV[2] ttl                 milliseconds from now
--
-- Returns, with the server's time in microseconds as second element:
--   held  now                 the key expires after the ttl
--   gone  now                 the key has another value, or an expiry
--
-- By hand, from this folder:
--   redis-cli --eval <(cat ../first/writes.lua ../head/classic.lua ../attempt.lua repair.lua) lock:a , them 30000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused and not is_wrong_type then
  return refused
end
-- An earlier poll saw the value: the holder may be alive, and may have set its own expiry since.
local same = type(value) == 'string' and string.sub(value, 1, 200) == ARGV[1]
if not same or redis.call('PTTL', KEYS[1]) ~= -1 then
  return {'gone', now}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'held', now}
