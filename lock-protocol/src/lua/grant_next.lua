-- grant_next: while K is free or shared and waiters exist, lets in the live waiters at the front of the queue
-- that can hold K together: one exclusive waiter, or those of one group.
--
-- A part, not a script of its own: it stands behind the fast paths of acquire.lua, release.lua and force_release.lua,
-- and behind next_token.lua and group.lua, whose functions it calls.
--
-- Arguments of grant_next:
--   command  of the script: time (the reply to TIME), now (microseconds), floor and lead (of tokens),
--            owner_id, ttl, label and kind of the caller; entry of a caller that waits, "" for one attempt, and
--            nothing in a call that acquires nothing; groups (of group.lua) where K is shared
--   value    of K; false while K is free
--   moved    whether the queue may have another head than before
--   group    of a shared K, after its dead members were removed
-- What it hands back:
--   own      the grant of the caller: id, lease and token; nil if it got none
--   any      whether there was any grant
--   value    of K now
--   grace    milliseconds for which K stays free for foreign clients
--   more     whether the scan stopped after 100 entries and others stand behind them
--   group    of K now
--
-- The order of the writes is counter, holders, queue, key, notifications: a script that fails in the middle
-- is not rolled back, and a broken counter leaves the queue as it was. `admit` writes counter and holders, grant_next
-- queue and key, and `notify` comes last.

-- Reads who is next: an entry of the queue, or without one the caller, which makes one attempt. Returns its fields,
-- whether it is the caller, and whether it is alive. `subscribed` remembers the channels that were looked up.
local function read_head(command, head, now_ms, subscribed)
  if not head then
    -- No waiter is left, so a caller that makes one attempt comes now.
    return command.owner_id, 'p', command.kind, nil, nil, command.label, true, true
  end
  local id, mode, kind, lease, expires_at, channel, label =
    string.match(head, '^(%S+) (%a)(%S*) (%d+) (%d+) (%S+) (.*)$')
  local is_caller = id == command.owner_id and command.entry == head
  local is_alive = is_caller or id and now_ms <= tonumber(expires_at)
  if is_alive and not is_caller and mode ~= 'p' then
    -- Before K is set: the count that PUBLISH returns comes too late, because the message may
    -- already travel through a replica.
    if subscribed[channel] == nil then
      -- A number that cannot be read says nothing, as for a caller without the right to ask: a grant to a waiter that
      -- died costs its lease, but a waiter that is left out may wait forever.
      local counts = attempt('PUBSUB', NUMSUB, channel)
      subscribed[channel] = (type(counts) == 'table' and tonumber(counts[2])) ~= 0
    end
    is_alive = subscribed[channel]
  end
  return id, mode, kind, lease, channel, label, is_caller, is_alive
end

-- Lets a holder in: exclusively if the name is "", or beside the group that holds K, or as the first of a group of this
-- name. Returns K's value and token, and the group. The caller writes K: with SET for an exclusive holder, with
-- `groups.write` for a group.
local function admit(command, group, name, weight, id, lease, label)
  local now, groups, value, token = command.now, command.groups, nil, nil
  if not group then
    -- Before any write: this ends the call if the holders are no zset.
    local is_stale = name ~= '' and redis.call('ZCARD', groups.holders) > 0
    token = next_token(command.floor, command.lead, now)
    local since_ms = command.time[1] .. string.sub('00000' .. command.time[2], -6, -4)
    value = ' ' .. token .. ' ' .. since_ms .. ' ' .. label
    if name == '' then
      return 'lk1:' .. id .. value, token
    end
    if is_stale then
      redis.call('DEL', groups.holders)
    end
    value = 'lks:' .. name .. value
    group = {name = name, token = token, value = value, used = 0, is_new = true}
  end
  local ends = math.floor(now / 1000) + lease
  -- GT: a notification of an earlier grant of this owner id may have had a later end.
  local added = groups.write_members('GT', string.format('%.0f', ends), id, weight, label)
  group.used, group.ends = group.used + added, math.max(group.ends or 0, ends)
  return group.value, group.token, group
end

-- Publishes the grants, and tells the waiter that is first now for how long it may sleep.
local function notify(command, owner, shared, value, grace, more, group)
  -- A caller without the right to publish has handed over all the same: the waiter polls.
  local stamp = string.format('%.0f', command.now)
  if owner and owner.channel then
    attempt(PUBLISH, owner.channel,
      'g ' .. owner.id .. ' ' .. owner.token .. ' ' .. stamp .. ' ' .. owner.lease)
  elseif shared then
    -- Several grants of one channel are the lines of one message.
    local channels, texts = {}, {}
    for _, grant in ipairs(shared) do
      local channel = grant.channel
      if channel then
        local text = 'g ' .. grant.id .. ' ' .. grant.token .. ' ' .. stamp .. ' ' .. grant.lease
        if texts[channel] then
          text = texts[channel] .. '\n' .. text
        else
          channels[#channels + 1] = channel
        end
        texts[channel] = text
      end
    end
    for _, channel in ipairs(channels) do
      attempt(PUBLISH, channel, texts[channel])
    end
  end
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  local id, mode, kind, channel = string.match(head or '', '^(%S+) (%a)(%S*) %d+ %d+ (%S+) ')
  if id and mode ~= 'p' then
    -- A foreign holder notifies no waiter when it releases: the head has to poll from now on.
    local left = owner and owner.lease or grace
    if more then
      left = 0
    elseif group then
      left = math.max(command.groups.wait_ms(kind, group, math.floor(command.now / 1000)), 0)
    elseif not owner and value and string.find(value, '^lk[1s]:')
        -- The work is done: the waiter has to learn it at once, and the one behind it when this one leaves.
        and not string.find(value, '^lk1:ffffffff%-ffff%-ffff%-ffff%-ffffffffffff ') then
      left = math.max(redis.call('PTTL', KEYS[1]), 0)
    end
    -- Eight digits identify the waiter. They are not enough to forge a grant, which has all digits.
    attempt(PUBLISH, channel,
      'h ' .. string.sub(id, 1, 8) .. ' ' .. stamp .. ' ' .. string.format('%.0f', left))
  end
end

local function grant_next(command, value, moved, group)
  local grace, more, now_ms, may_grant = 0, false, math.floor(command.now / 1000), true
  local own, owner, shared -- the caller's grant, an exclusive one, and those of a group
  -- 1. May K be granted? Not while it is held exclusively, nor during the grace after a release.
  if not value then
    grace = redis.call('PTTL', KEYS[4])
    if grace < 0 then
      grace = 0
    else
      may_grant = false
    end
  elseif not group then
    may_grant = false
  end
  if may_grant then
    -- The first entry is alive in most cases. A call looks at 100 entries at most, so that it does
    -- not block the server.
    local heads, taken, subscribed = redis.call('ZRANGE', KEYS[2], 0, 0), {}, {}
    -- 2. Entry by entry: dead ones go, live ones come in, and the first that does not fit ends it.
    repeat
      if #taken == 100 and redis.call('ZRANGE', KEYS[2], -1, -1)[1] ~= taken[100] then
        more, moved = true, true
        break
      end
      local head = heads[#taken + 1]
      if not head and command.entry ~= '' then
        break
      end
      local id, mode, kind, lease, channel, label, is_caller, is_alive = read_head(command, head, now_ms, subscribed)
      if is_alive then
        local name, weight, limit = '', 1, 1
        if kind ~= '' then
          command.groups = command.groups or group_functions()
          name, weight, limit = command.groups.read_kind(kind)
        end
        if not name or mode ~= 's' and mode ~= 'p' then
          -- A waiter of a version that this one does not know: it takes K by itself.
          moved = moved or not value
          break
        end
        if group and (group.name ~= name or group.used + weight > limit) then
          break
        end
        local grant = {id = id, lease = is_caller and command.ttl or lease,
          channel = not is_caller and mode == 's' and channel}
        value, grant.token, group = admit(command, group, name, weight, id, grant.lease, label)
        if name == '' then
          owner = grant
        else
          shared = shared or {}
          shared[#shared + 1] = grant
        end
        if id == command.owner_id and not (own and tonumber(own.lease) >= tonumber(grant.lease)) then
          own = grant
        end
      else
        -- Also where it could not be let in: a dead writer must not keep readers out.
        moved = moved or group ~= nil
      end
      taken[#taken + 1] = head
      if #taken == 1 and not owner then
        heads = redis.call('ZRANGE', KEYS[2], 0, 99)
      end
    until owner or not head
    -- 3. The queue, and then K.
    if taken[1] then
      redis.call('ZREM', KEYS[2], unpack(taken))
    end
    if owner then
      redis.call('SET', KEYS[1], value, 'PX', owner.lease)
    elseif shared then
      command.groups.write(group, now_ms)
    end
  end
  if moved and not may_grant and value
      and string.sub(value, 1, 41) == 'lk1:ffffffff-ffff-ffff-ffff-ffffffffffff ' then
    -- The work is done, and each waiter that hears so leaves and wakes the next. A dead one would end that chain.
    local dead, subscribed = {}, {}
    for _, head in ipairs(redis.call('ZRANGE', KEYS[2], 0, 99)) do
      local _, _, _, _, _, _, _, is_alive = read_head(command, head, now_ms, subscribed)
      if is_alive then
        break
      end
      dead[#dead + 1] = head
    end
    if dead[1] then
      redis.call('ZREM', KEYS[2], unpack(dead))
    end
  end
  -- 4. The waiters learn of it.
  if owner or shared or moved then
    notify(command, owner, shared, value, grace, more, group)
  end
  return own, (owner or shared) ~= nil, value, grace, more, group
end
