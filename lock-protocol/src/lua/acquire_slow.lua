-- acquire_slow: what acquire.lua does for a lock that is not free, that has waiters, or that is shared.
--
-- A part, not a script of its own: it stands behind the fast path of acquire.lua, attempt.lua, group.lua and
-- grant_next.lua, and uses the fast path's kind, time, now and stamp.
--
-- Paths, in this order. `take` lets the caller in without regard to others.
--   1  K is no string                                                 foreign
--   2  K belongs to the caller                                        raises its lease: held. A downgrade: take
--   3  the caller is a member of the group                            raises its lease: held
--   4  a downgrade, and K does not belong to the caller               gone
--   5  an exchange: K belongs to the owner that the caller replaces   counter, K, notification: held
--      K does not                                                     gone
--   6  shared, K free or of the same group with room, no queue        take
--   7  the work of an earlier holder is done for a period             leaves the queue: busy
--   8  K is held by others, and the caller makes one attempt          busy
--   9  everything else                                                enters the queue, then grant_next: held, more,
--                                                                     busy, full or queued
-- What was found about K (2, 3) goes before what is asked for: a late copy of an acquire must find its own lock,
-- whatever became of it since.

-- Times stay texts where they are only passed on.
local owner_id, ttl, label, entry = ARGV[1], ARGV[2], ARGV[5], ARGV[6] or ''
local is_downgrade = kind == '>r'
local replaced = kind ~= '' and string.match(kind, '^>(..+)$')
if replaced then
  kind = ''
end
local command = {time = time, now = now, floor = ARGV[3], lead = ARGV[7] or 0, owner_id = owner_id,
  ttl = ttl, label = label, kind = kind, entry = entry}
local value, refused, is_wrong_type = attempt('GET', KEYS[1])
if refused then
  if not is_wrong_type then
    return refused
  end
  return 'foreign' .. stamp .. ' ' .. redis.call('TYPE', KEYS[1]).ok
end

local groups, group, name, weight, limit
if kind ~= '' or value and string.sub(value, 1, 4) == 'lks:' then
  groups = group_functions()
  command.groups, command.kind = groups, is_downgrade and 'r' or kind
  name, weight, limit = groups.read_kind(command.kind)
end

-- Lets the caller in, without regard to others.
local function take()
  local _
  _, _, group = admit(command, group, name, weight, owner_id, ttl, label)
  groups.write(group, math.floor(now / 1000))
  return 'held' .. stamp .. ' ' .. group.token .. ' ' .. ttl
end

if value then
  -- The acquire is idempotent: the same token, and at least the ttl of this call.
  if string.sub(value, 1, 41) == 'lk1:' .. owner_id .. ' ' then
    if is_downgrade then
      local reply = take()
      command.entry = nil
      grant_next(command, group.value, false, group)
      return reply
    end
    local remaining = redis.call('PTTL', KEYS[1])
    if remaining < tonumber(ttl) then
      redis.call('PEXPIRE', KEYS[1], ttl)
      remaining = ttl
    end
    return 'held' .. stamp .. ' ' .. string.match(value, '^%S+ (%S+)')
      .. string.format(' %.0f', remaining)
  end
  group = groups and groups.read(value)
  if group then
    local now_ms = math.floor(now / 1000)
    groups.remove_dead(now_ms)
    group.used = redis.call('ZCARD', groups.holders)
    if group.used == 0 then
      redis.call('DEL', KEYS[1])
      value, group = false, nil
    else
      -- Whatever kind is asked for: a copy from before a downgrade changes nothing.
      local left = groups.raise_members(now_ms, ttl, owner_id, weight, label)
      if left then
        return 'held' .. stamp .. ' ' .. group.token .. string.format(' %.0f', left)
      end
    end
  end
end
if is_downgrade then
  return 'gone' .. stamp
end
if replaced then
  if not value or string.sub(value, 1, 41) ~= 'lk1:' .. replaced .. ' ' then
    return 'gone' .. stamp
  end
  local token
  value, token = admit(command, nil, '', 1, owner_id, ttl, label)
  redis.call('SET', KEYS[1], value, 'PX', ttl)
  -- The lease may end sooner than the first waiter knows.
  grant_next(command, value, true)
  return 'held' .. stamp .. ' ' .. token .. ' ' .. ttl
end
if kind ~= '' and (not value or group and group.name == name and group.used + weight <= limit)
    and redis.call('EXISTS', KEYS[2]) == 0 then
  return take()
end
local is_done = value and string.sub(value, 1, 41) == 'lk1:ffffffff-ffff-ffff-ffff-ffffffffffff '
if is_done and entry ~= '' and redis.call('ZREM', KEYS[2], entry, unpack(ARGV, 9)) > 0 then
  -- The waiter behind it learns it next.
  grant_next(command, value, true)
end
if value and (entry == '' or is_done) and not (group and group.name == name) then
  local remaining = string.format(' %.0f ', redis.call('PTTL', KEYS[1]))
  if group then
    value = 'lks:' .. group.used .. ':' .. string.sub(value, 5)
  end
  return 'busy' .. stamp .. remaining .. string.sub(value, 1, 200)
end

local moved = false -- whether the queue may have another head than before
local max_queue -- of a caller that was not in the queue before
local function is_refused()
  return max_queue and redis.call('ZRANK', KEYS[2], entry) >= max_queue
end
if entry ~= '' then
  local was_queued = redis.call('ZSCORE', KEYS[2], entry)
  if not was_queued and ARGV[9] then
    max_queue = tonumber(string.match(ARGV[9], '^max (%d+)$'))
  end
  if not was_queued or ARGV[9] then
    -- In the order of arrival: behind the last entry, or at the place of an earlier entry of the
    -- same owner id.
    local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
    local score = last[2] and last[2] + 1 or 1
    for i = 9, #ARGV do
      local earlier = redis.call('ZSCORE', KEYS[2], ARGV[i])
      if earlier then
        score = math.min(score, tonumber(earlier))
        redis.call('ZREM', KEYS[2], ARGV[i])
        max_queue = nil
      end
    end
    if not was_queued then
      redis.call('ZADD', KEYS[2], score, entry)
    end
  end
  if was_queued and value and not group or is_refused() then
    -- Removes expired entries, if the head has expired, or if they fill the queue. Those behind a live head
    -- stay otherwise: reading a hundred entries costs ten times as much as the rest of a poll. Entries whose
    -- channel has no subscriber stay while K is held: their connection may be broken for a moment only.
    -- grant_next removes those of a shared K.
    local now_ms, expired = math.floor(now / 1000), {}
    local function find_expired(first, last)
      for _, other in ipairs(redis.call('ZRANGE', KEYS[2], first, last)) do
        local expires_at = string.match(other, '^%S+ %a%S* %d+ (%d+) %S+ ')
        if expires_at and now_ms > tonumber(expires_at) and other ~= entry then
          expired[#expired + 1] = other
        end
      end
    end
    find_expired(0, 0)
    moved = expired[1] ~= nil
    if moved or not was_queued then
      find_expired(1, 99)
    end
    if expired[1] then
      redis.call('ZREM', KEYS[2], unpack(expired))
    end
  end
end

local own, _, grace, more
own, _, value, grace, more, group = grant_next(command, value, moved, group)

if own then
  return 'held' .. stamp .. ' ' .. own.token .. ' ' .. own.lease
end
if more then
  if max_queue then
    -- The repeated call finds out whether the queue is full.
    redis.call('ZREM', KEYS[2], entry)
  end
  return 'more' .. stamp
end
local remaining = value and redis.call('PTTL', KEYS[1]) or grace
if group then
  remaining = command.groups.wait_ms(kind, group, math.floor(now / 1000))
  value = 'lks:' .. group.used .. ':' .. string.sub(value, 5)
end
value = string.format('%.0f ', remaining) .. (value and string.sub(value, 1, 200) or '')
if entry == '' then
  return 'busy' .. stamp .. ' ' .. value
end
if is_refused() then
  local rank = redis.call('ZRANK', KEYS[2], entry)
  redis.call('ZREM', KEYS[2], entry)
  return 'full' .. stamp .. ' ' .. rank .. ' ' .. value
end
-- The queue outlives the lock and the last poll by ten minutes, the longest lifetime of an entry.
-- Other clients write keys that expire in a million years: a day is enough.
local held = math.min(math.max(remaining, 0), 86400000)
local _, not_expiring = attempt('PEXPIRE', KEYS[2], held + 600000)
if not_expiring then
  -- The server does not undo the entry, and a new queue would have no expiry. The caller cancels after this error.
  attempt('ZREM', KEYS[2], entry)
  return not_expiring
end
return 'queued' .. stamp .. ' ' .. redis.call('ZRANK', KEYS[2], entry) .. ' ' .. value
