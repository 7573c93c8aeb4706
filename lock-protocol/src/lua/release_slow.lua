-- release_slow: what release.lua does for a lock with waiters, for a shared one, and for a cancel.
--
-- A part, not a script of its own: it stands behind the fast path of release.lua, attempt.lua, next_token.lua,
-- group.lua, grant_next.lua and keep.lua, and uses the fast path's is_read, value, was_owner, min_hold, kind, time and removed.
--
-- Steps, in this order. K goes first, because nothing that fails later may keep it locked:
--   1  K of the caller          deleted, or kept without an owner: see keep.lua
--   2  members of the caller    removed, or kept for min_hold without an owner; then K ends with its last member
--   3  entries of the caller    removed from the queue
--   4  grant_next               if waiters are left

time = time or redis.call('TIME')
if not is_read then
  -- Once more, for its error. A key of another type belongs to another client, but entries may be left.
  local _, refused, is_wrong_type = attempt('GET', KEYS[1])
  if refused and not is_wrong_type then
    return refused
  end
  value = ''
end
local moved, groups, group = was_owner, nil, nil
if was_owner and min_hold ~= '0' then
  value = keep(value, min_hold, time)
elseif was_owner then
  -- Before everything that can fail: a broken queue or counter is reported, and K is free. The fast path has done it
  -- for a plain release.
  if ARGV[5] then
    redis.call('DEL', KEYS[1])
  end
  value = false
elseif value and string.sub(value, 1, 4) == 'lks:' then
  groups = group_functions()
  group = groups.read(value)
end
if group then
  local now_ms, holders = time[1] * 1000 + math.floor(time[2] / 1000), groups.holders
  if removed then
    was_owner = removed > 0
  else
    groups.remove_dead(now_ms)
  end
  if kind ~= '' and not removed then
    local _, weight = groups.read_kind(kind)
    local members = {}
    for number = 1, weight do
      members[number] = ARGV[1] .. ' ' .. number .. ' ' .. ARGV[6]
    end
    was_owner = redis.call('ZREM', holders, unpack(members)) > 0
    if was_owner and min_hold ~= '0' then
      -- As above: the permits stay taken, without an owner.
      groups.write_members('GT', string.format('%.0f', now_ms + min_hold), '-' .. ARGV[1], weight, ARGV[6])
    end
  end
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  if not last then
    redis.call('DEL', KEYS[1])
    value, group, moved = false, nil, true
  elseif was_owner then
    -- Redis deletes a key at an end that is not in the future, and a member is alive up to its end. Without
    -- these ten milliseconds, a release in the millisecond of another member's end would free K.
    local ends, left = math.max(last, now_ms + 10), redis.call('PTTL', KEYS[1])
    -- A kept permit may end before those that the head of the queue knows of.
    moved = left < 0 or ends < now_ms + left or min_hold ~= '0'
    for _, key in ipairs({KEYS[1], holders}) do
      redis.call('PEXPIREAT', key, string.format('%.0f', ends))
    end
  end
end
-- In parts: unpack takes some thousand arguments at most.
for first = 8, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  moved = redis.call('ZREM', KEYS[2], unpack(ARGV, first, last)) > 0 or moved
end
-- A copy of this release has left the mark already.
local is_marked = not was_owner and value and string.sub(min_hold, 1, 5) == 'done '
  and string.sub(value, 1, 41) == 'lk1:ffffffff-ffff-ffff-ffff-ffffffffffff '
local verdict, more = (was_owner or is_marked) and 'released ' or 'gone ', false
if redis.call('EXISTS', KEYS[2]) == 1 then
  if was_owner and not value and ARGV[3] ~= '0' then
    redis.call('SET', KEYS[4], '', 'PX', ARGV[3])
  end
  local command = {time = time, now = time[1] * 1000000 + time[2], floor = ARGV[2], lead = ARGV[4] or 0,
    groups = groups}
  if group then
    group.used = redis.call('ZCARD', groups.holders)
  end
  local _, any
  _, any, _, _, more = grant_next(command, value, moved, group)
  verdict = was_owner and any and 'handed ' or verdict
end

return verdict .. time[1] .. ' ' .. time[2] .. (more and ' more' or '')
