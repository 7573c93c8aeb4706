-- group: what several holders of K have together: readers, or holders of permits out of one number.
--
-- Not a script of its own: grant_next.lua, acquire.lua and renew.lua use these functions, and include this
-- file. K is then "lks:<group> <token> <since ms> <label>", and lives until the last lease ends. The key of the
-- holders is a zset: "<owner id> <number> <label>" -> end of the lease, in milliseconds of server time. A holder
-- of a weight has as many members, with the numbers from 1.
--
-- A group is a table: name ("r" or the number of permits), token, value (of K), used (the number of members).
-- The functions that admit need `command` of grant_next.lua.

-- Returns the name of a kind's group, the weight, and how many members the group may have. Returns nothing for
-- a kind of another version. The group of exclusive locks is "".
local function read_kind(kind)
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
local function read_group(value)
  local name, token = string.match(value, '^lks:(%S+) (%d+) %d+ ')
  if name and (name == 'r' or string.find(name, '^[1-9]%d*$') and tonumber(name) <= 10000) then
    return {name = name, token = token, value = value}
  end
end

-- Removes the members whose leases have ended. Returns the number of the others.
local function remove_dead(holders, now_ms)
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', string.format('(%.0f', now_ms))
  return redis.call('ZCARD', holders)
end

-- Writes the end of a holder's members, and returns how many are new. `option` is that of ZADD.
local function write_members(holders, option, ends, id, weight, label)
  if weight == 1 then
    return redis.call('ZADD', holders, option, ends, id .. ' 1 ' .. label)
  end
  local members = {}
  for number = 1, weight do
    members[#members + 1] = ends
    members[#members + 1] = id .. ' ' .. number .. ' ' .. label
  end
  return redis.call('ZADD', holders, option, unpack(members))
end

-- Raises the ends of K and of the holders.
local function raise_ends(holders, ends, now_ms)
  for _, key in ipairs({KEYS[1], holders}) do
    redis.call('PEXPIREAT', key, ends, 'GT')
  end
end

-- Raises the lease of a holder to at least the ttl, and returns what is left of it. Returns nothing if the
-- caller is no holder, or its lease has ended.
local function raise_members(holders, now_ms, ttl, id, weight, label)
  local last = redis.call('ZSCORE', holders, id .. ' 1 ' .. label)
  if not last or now_ms > tonumber(last) then
    return nil
  end
  local left = last - now_ms
  if left < tonumber(ttl) then
    local ends = string.format('%.0f', now_ms + ttl)
    write_members(holders, 'XX', ends, id, weight, label)
    raise_ends(holders, ends, now_ms)
    left = tonumber(ttl)
  end
  return left
end
