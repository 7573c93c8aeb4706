-- grant_next: while K is free or shared and waiters exist, lets in the live waiters at the front of the queue
-- that can hold K together: one exclusive waiter, or those of one group.
--
-- Not a script of its own: acquire.lua and release.lua include this function, after the lines that
-- serve a lock without waiters. So does force_release.lua.
--
-- Arguments:
--   command  of the script: time (the reply to TIME), now (microseconds), floor and lead (of tokens),
--            owner_id, ttl, label and kind of the caller; entry of a caller that waits, "" for one attempt, and
--            nothing in a call that acquires nothing; groups (of group.lua) where K is shared
--   value    of K; false while K is free
--   moved    whether the queue may have another head than before
--   group    of a shared K, after its dead members were removed
-- Returns:
--   own      the grant of the caller: id, lease and token; nil if it got none
--   any      whether there was any grant
--   value    of K now
--   grace    milliseconds for which K stays free for foreign clients
--   more     whether the scan stopped after 100 entries and others stand behind them
--   group    of K now
--
-- The order of the writes is counter, holders, queue, key, notifications: a script that fails in the middle
-- is not rolled back, and a broken counter leaves the queue as it was.

-- include group.lua

local function grant_next(command, value, moved, group)
  local now, grace, more, groups = command.now, 0, false, command.groups
  local now_ms, may_grant = math.floor(now / 1000), true
  local own, owner, shared -- the caller's grant, an exclusive one, and those of a group
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
    repeat
      if #taken == 100 and redis.call('ZRANGE', KEYS[2], -1, -1)[1] ~= taken[100] then
        more, moved = true, true
        break
      end
      local head = heads[#taken + 1]
      local id, mode, kind, lease, expires_at, channel, label
      local is_caller, is_alive = false, false
      if head then
        id, mode, kind, lease, expires_at, channel, label =
          string.match(head, '^(%S+) (%a)(%S*) (%d+) (%d+) (%S+) (.*)$')
        is_caller = id == command.owner_id and command.entry == head
        is_alive = is_caller or id and now_ms <= tonumber(expires_at)
        if is_alive and not is_caller and mode ~= 'p' then
          -- Before K is set: the count that PUBLISH returns comes too late, because the message may
          -- already travel through a replica.
          if subscribed[channel] == nil then
            local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
            subscribed[channel] = count.err ~= nil or count[2] > 0
          end
          is_alive = subscribed[channel]
        end
      elseif command.entry == '' then
        -- No waiter is left, so a caller that makes one attempt comes now.
        id, mode, kind, label, is_caller, is_alive = command.owner_id, 'p', command.kind, command.label, true, true
      else
        break
      end
      if is_alive then
        local name, weight, limit = '', 1, 1
        if kind ~= '' then
          groups = groups or group_functions()
          name, weight, limit = groups.read_kind(kind)
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
        if name == '' then
          local floor, lead = command.floor, command.lead
          -- include next_token.lua
          local since_ms = command.time[1] .. string.sub('00000' .. command.time[2], -6, -4)
          value = 'lk1:' .. id .. ' ' .. token .. ' ' .. since_ms .. ' ' .. label
          owner, grant.token = grant, token
        else
          group = groups.admit(command, group, name, weight, id, grant.lease, label)
          value, grant.token, shared = group.value, group.token, shared or {}
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
    if taken[1] then
      redis.call('ZREM', KEYS[2], unpack(taken))
    end
    if owner then
      redis.call('SET', KEYS[1], value, 'PX', owner.lease)
    elseif shared then
      groups.write(group, now_ms)
    end
  end

  if owner or shared or moved then
    -- A caller without the right to publish has handed over all the same: the waiter polls.
    local stamp = string.format('%.0f', now)
    if owner and owner.channel then
      redis.pcall('PUBLISH', owner.channel,
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
        redis.pcall('PUBLISH', channel, texts[channel])
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
        left = math.max(groups.wait_ms(kind, group, now_ms), 0)
      elseif not owner and value and string.find(value, '^lk[1s]:') then
        left = math.max(redis.call('PTTL', KEYS[1]), 0)
      end
      -- Eight digits identify the waiter. They are not enough to forge a grant, which has all digits.
      redis.pcall('PUBLISH', channel,
        'h ' .. string.sub(id, 1, 8) .. ' ' .. stamp .. ' ' .. string.format('%.0f', left))
    end
  end
  return own, (owner or shared) ~= nil, value, grace, more, group
end
