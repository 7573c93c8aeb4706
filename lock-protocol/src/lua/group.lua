-- group: what several holders of K have together: readers, or holders of permits out of one number.
--
-- A part, not a script of its own: it stands in front of grant_next.lua and renew.lua. K of a group is
-- "lks:<group> <token> <since ms> <label>", and lives until the last lease ends. The key of the holders is a
-- zset: "<owner id> <number> <label>" -> end of the lease, in milliseconds of server time. A holder of a weight
-- has as many members, with the numbers from 1.
--
-- A group is a table: name ("r" or the number of permits), token, value (of K), used (the number of members).
--
-- The function returns a table of functions. A script calls it when it meets a shared lock: making the
-- functions costs more than an exclusive lock may pay for them. Without `holders`, the key is KEYS[5].
local function group_functions(holders)
  holders = holders or KEYS[5]
  local groups = {holders = holders}

  -- Returns the name of a kind's group, the weight, and how many members the group may have. Returns nothing
  -- for a kind of another version. The group of exclusive locks is "".
  function groups.read_kind(kind)
    if kind == '' or kind == 'r' then
      return kind, 1, math.huge
    end
    local of, weight = string.match(kind, '^([1-9]%d*)$'), 1
    if not of then
      of, weight = string.match(kind, '^([1-9]%d*)x([1-9]%d*)$')
      weight = tonumber(weight)
      if not of or weight == 1 or weight > 256 or weight > tonumber(of) then
        return nil
      end
    end
    if tonumber(of) > 10000 then
      return nil
    end
    return of, weight, tonumber(of)
  end

  -- Returns the group of a value of K, without its number of members. Returns nothing for another value.
  function groups.read(value)
    local name, token = string.match(value, '^lks:(%S+) (%d+) %d+ ')
    -- A token is a number of 64 bits, which hold any 19 digits.
    if name and #token < 20 and (name == 'r' or string.find(name, '^[1-9]%d*$') and tonumber(name) <= 10000) then
      return {name = name, token = token, value = value}
    end
  end

  -- Removes the members whose leases have ended.
  function groups.remove_dead(now_ms)
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', string.format('(%.0f', now_ms))
  end

  -- Raises the ends of a holder's members, and returns how many are new. `option` is 'XX' where none may be new, and
  -- otherwise 'GT' again.
  function groups.write_members(option, ends, id, weight, label)
    if weight == 1 then
      return redis.call('ZADD', holders, 'GT', option, ends, id .. ' 1 ' .. label)
    end
    local members = {}
    for number = 1, weight do
      members[#members + 1] = ends
      members[#members + 1] = id .. ' ' .. number .. ' ' .. label
    end
    return redis.call('ZADD', holders, 'GT', option, unpack(members))
  end

  -- Sets the end of the holders of a new group. Without the right to do so, no key without an end is left.
  function groups.expire_members(ends)
    local is_done, refused = pcall(redis.call, 'PEXPIREAT', holders, ends)
    if not is_done then
      redis.call('DEL', holders)
      -- Ends the call with the same error.
      error(refused, 0)
    end
  end

  -- Raises the ends of K and of the holders.
  function groups.raise_ends(ends, now_ms)
    for _, key in ipairs({KEYS[1], holders}) do
      if LEGACY then
        local left = redis.call('PTTL', key)
        if left >= 0 and now_ms + left < tonumber(ends) then
          redis.call('PEXPIREAT', key, ends)
        end
      else
        redis.call('PEXPIREAT', key, ends, 'GT')
      end
    end
  end

  -- Raises the lease of a holder to at least the ttl, and returns what is left of it. Returns nothing if the
  -- caller is no holder, or its lease has ended.
  function groups.raise_members(now_ms, ttl, id, weight, label)
    local last = redis.call('ZSCORE', holders, id .. ' 1 ' .. label)
    if not last or now_ms > tonumber(last) then
      return nil
    end
    local left = last - now_ms
    if left < tonumber(ttl) then
      local ends = string.format('%.0f', now_ms + ttl)
      groups.write_members('XX', ends, id, weight, label)
      groups.raise_ends(ends, now_ms)
      left = tonumber(ttl)
    end
    return left
  end

  -- Writes K after new holders were let in.
  function groups.write(group, now_ms)
    local ends = string.format('%.0f', group.ends)
    if group.is_new then
      groups.expire_members(ends)
      redis.call('SET', KEYS[1], group.value, 'PXAT', ends)
    else
      groups.raise_ends(ends, now_ms)
    end
    group.is_new, group.ends = nil, nil
  end

  -- Returns the milliseconds after which a caller of this kind may be let in by expiry alone: the first end of
  -- a lease where a permit is enough, else the end of K. Returns -1 for a K without expiry.
  function groups.wait_ms(kind, group, now_ms)
    if group.name ~= 'r' and groups.read_kind(kind) == group.name then
      local first = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
      return math.max(first[2] - now_ms, 0)
    end
    return redis.call('PTTL', KEYS[1])
  end

  return groups
end
