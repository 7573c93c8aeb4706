-- acquire: acquires the lock, or enters its queue, or returns the holder.
--
-- KEYS[1] lock key K          a string with an expiry
-- KEYS[2] queue of waiters    a zset: entry -> order of arrival
-- KEYS[3] fencing counter     a string with an integer
-- KEYS[4] grace key           set for a moment after a release that yields to other clients
-- KEYS[5] holders             a zset while several hold K: "<owner id> <number> <label>" -> end of the lease
-- ARGV[1] owner id            of the caller
-- ARGV[2] ttl                 milliseconds
-- ARGV[3] floor               microseconds: no token may be lower
-- ARGV[4] not_after           milliseconds of server time: a later copy of this call does nothing
-- ARGV[5] label               for people
-- ARGV[6] entry               "<owner id> <mode><kind> <lease ms> <expires_at ms> <channel> <label>",
--                             or "" for one attempt without an entry in the queue
-- ARGV[7] lead                microseconds: how far a counter's seed lies ahead of the time; 0
-- ARGV[8] kind                of the lock: "" exclusive, "r" for reading, "<of>" one of that many permits,
--                             "<of>x<weight>" several of them; ">r" makes the holder of the exclusive lock a
--                             reader, and no other caller; ">" and an owner id makes the caller the owner of an
--                             exclusive lock in that owner's place, and takes no other lock
-- ARGV[9...] earlier entries  that the same owner id had, or may have had, in the queue. In front of them may be
--                             "max <n>": a caller that is not in the queue yet, and finds this many waiters, is refused
-- The last arguments may be missing: each one costs the server 0.1 us. Then the entry is "", the lead is
-- 0, and the kind is "".
--
-- The value of K is "lk1:<owner id> <token> <since ms> <label>", or of a shared K
-- "lks:<group> <token> <since ms> <label>", with the group "r" or the number of permits. All holders of a group
-- have its token. Two owner ids stand for no owner: see keep.lua.
--
-- Returns one string, because a reply of several elements costs the server 0.7 us more. Its words are
-- separated by spaces. `now` is two words: the seconds of the server's time, and the microseconds in
-- the second.
--   late     now                              the call came after not_after; nothing was written
--   held     now  token  remaining            the caller holds the lock (also if it did before)
--   queued   now  rank   remaining  value     the caller waits; remaining and value are the holder's
--   full     now  rank   remaining  value     the caller is refused: `rank` others wait. It has no entry
--   busy     now  remaining  value            another holder has the lock, or goes before the caller. Or its work is
--                                             done for a period: then the caller has no entry any more
--   more     now                              the first hundred entries were dead and are removed, or were
--                                             let in, and others stand behind them: call again at once
--   foreign  now  type                        the key holds something that is no string
--   gone     now                              the caller of a downgrade, or the owner whose place an exchange takes,
--                                             does not hold K; nothing was written
-- A remaining of -1 is a key without expiry. For a caller that needs a permit of the same number, it is the
-- first end of a lease. The value is cut to 200 bytes, "" while K is free. It may have spaces and any other
-- bytes. That of a shared K has its number of members before the group: "lks:3:r ..".
--
-- Paths. This part is the fast one, and acquire_slow.lua the rest. It does what most acquires need with as few calls as
-- possible: each one costs the server 0.5 us. The functions of a handover and of shared locks stand behind it, because
-- every run that reaches them makes its closures anew: in front, they would cost a pair 0.4 us.
--   1  after not_after                                     late
--   2  exclusive, K free, no queue                         counter, K: held
--   3  shared with weight 1, K free, no queue              counter, holders, K: held
--   4  everything else                                     acquire_slow.lua
--
-- By hand, from this folder:
--   redis-cli --eval <(cat first/writes.lua head/classic.lua next_token.lua acquire.lua attempt.lua group.lua \
--     grant_next.lua acquire_slow.lua) lock:a '{lock:a}:q' '{lock:a}:f' '{lock:a}:g' '{lock:a}:h' , \
--     6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 30000 0 9999999999999 by-hand '' 0 ''

local time = redis.call('TIME')
local seconds, micros = time[1], time[2]
local now = seconds * 1000000 + micros

-- A copy that was lost, resent or overtaken must not take effect later.
if now >= (ARGV[4] + 1) * 1000 then
  return 'late ' .. seconds .. ' ' .. micros
end

-- The common case first, with as few calls as possible: the key is free and has no queue.
local kind = ARGV[8] or ''
if kind == '' and redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local token = next_token(ARGV[3], ARGV[7] or 0, now)
  -- The milliseconds are cut from the text of the time: formatting a number costs more.
  redis.call('SET', KEYS[1], 'lk1:' .. ARGV[1] .. ' ' .. token .. ' ' .. seconds
    .. string.sub('00000' .. micros, -6, -4) .. ' ' .. ARGV[5], 'PX', ARGV[2])
  return 'held ' .. seconds .. ' ' .. micros .. ' ' .. token .. ' ' .. ARGV[2]
end

-- The same for a shared lock of weight 1.
local stamp = ' ' .. seconds .. ' ' .. micros
if kind ~= '' and not string.find(kind, '[>x]') and redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[5]) == 0 then
  local token = next_token(ARGV[3], ARGV[7], now)
  local ends = string.format('%.0f', math.floor(now / 1000) + ARGV[2])
  redis.call('ZADD', KEYS[5], ends, ARGV[1] .. ' 1 ' .. ARGV[5])
  -- By Lua's pcall: see attempt.lua, which stands behind this part.
  local is_done, refused = pcall(redis.call, 'PEXPIREAT', KEYS[5], ends)
  if not is_done then
    -- The caller has no right to do so: no key without an end may be left.
    redis.call('DEL', KEYS[5])
    return type(refused) == 'table' and refused or {err = refused}
  end
  redis.call('SET', KEYS[1], 'lks:' .. kind .. ' ' .. token .. ' ' .. seconds
    .. string.sub('00000' .. micros, -6, -4) .. ' ' .. ARGV[5], 'PXAT', ends)
  return 'held' .. stamp .. ' ' .. token .. ' ' .. ARGV[2]
end
