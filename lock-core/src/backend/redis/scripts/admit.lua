-- admit: lets a holder of a shared kind in.
--
-- Not a script of its own: grant_next.lua includes these functions, after those of group.lua.

-- Lets a holder in beside the group that holds K, or founds a group of this name where K is free. Returns the
-- group. write_group has to follow. `stale` is whether the members of an earlier group may be left.
local function admit(command, group, name, weight, id, lease, label, stale)
  local now = command.now
  if not group then
    -- Before any write: this ends the call if the holders are no zset.
    stale = stale and redis.call('ZCARD', KEYS[5]) > 0
    local floor, lead = command.floor, command.lead
    -- include next_token.lua
    if stale then
      redis.call('DEL', KEYS[5])
    end
    local since_ms = command.time[1] .. string.sub('00000' .. command.time[2], -6, -4)
    local value = 'lks:' .. name .. ' ' .. token .. ' ' .. since_ms .. ' ' .. label
    group = {name = name, token = token, value = value, used = 0, is_new = true}
  end
  local ends = math.floor(now / 1000) + lease
  -- GT: an earlier grant of the same owner id may have told it a later end.
  local added = write_members(KEYS[5], 'GT', string.format('%.0f', ends), id, weight, label)
  group.used, group.ends = group.used + added, math.max(group.ends or 0, ends)
  return group
end

-- Writes K after new holders were let in.
local function write_group(group, now_ms)
  local ends = string.format('%.0f', group.ends)
  if group.is_new then
    redis.call('PEXPIREAT', KEYS[5], ends)
    redis.call('SET', KEYS[1], group.value, 'PXAT', ends)
  else
    raise_ends(KEYS[5], ends, now_ms)
  end
  group.is_new, group.ends = nil, nil
end

-- Returns the milliseconds after which a caller of this kind may be let in by expiry alone: the first end of a
-- lease where a permit is enough, else the end of K. Returns -1 for a K without expiry.
local function wait_ms(kind, group, now_ms)
  if group and group.name ~= 'r' and read_kind(kind) == group.name then
    local first = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
    return math.max(first[2] - now_ms, 0)
  end
  return redis.call('PTTL', KEYS[1])
end
