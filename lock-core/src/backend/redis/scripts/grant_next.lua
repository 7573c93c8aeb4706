-- grant_next: while K is free or shared and waiters exist, lets in the live waiters at the front of the queue
-- that can hold K together: one exclusive waiter, or those of one group.
--
-- Not a script of its own: acquire.lua and release.lua include this function, after the lines that
-- serve a lock without waiters. So does force_release.lua.
--
-- Arguments:
--   command  of the script: time (the reply to TIME), now (microseconds), floor and lead (of tokens),
--            owner_id, ttl, label and kind of the caller; entry of a caller that waits, "" for one attempt, and
--            nothing in a call that acquires nothing
--   value    of K; false while K is free
--   moved    whether the queue may have another head than before
--   group    of a shared K, after its dead members were removed
-- Returns:
--   granted  the new holders in the order of their grants: id, lease, token and channel
--   value    of K now
--   grace    milliseconds for which K stays free for foreign clients
--   more     whether the scan stopped after 100 entries and others stand behind them
--   group    of K now
--
-- The order of the writes is counter, holders, queue, key, notifications: a script that fails in the middle
-- is not rolled back, and a broken counter leaves the queue as it was.

-- include group.lua
-- include admit.lua

local function grant_next(command, value, moved, group)
  local granted, now, grace, more = {}, command.now, 0, false
  local now_ms, may_grant = math.floor(now / 1000), group or not value
  if not value then
    grace = redis.call('PTTL', KEYS[4])
    may_grant = grace < 0
    grace = math.max(grace, 0)
  end
  if may_grant then
    -- The first entry is alive in most cases. A call looks at 100 entries at most, so that it does
    -- not block the server.
    local heads, taken, subscribed = redis.call('ZRANGE', KEYS[2], 0, 0), {}, {}
    local exclusive
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
        local name, weight, limit = read_kind(kind)
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
          exclusive, grant.token = grant, token
        else
          group = admit(command, group, name, weight, id, grant.lease, label, true)
          value, grant.token = group.value, group.token
        end
        granted[#granted + 1] = grant
      else
        -- Also where it could not be let in: a dead writer must not keep readers out.
        moved = moved or group ~= nil
      end
      taken[#taken + 1] = head
      if #taken == 1 and not exclusive then
        heads = redis.call('ZRANGE', KEYS[2], 0, 99)
      end
    until exclusive or not head
    if taken[1] then
      redis.call('ZREM', KEYS[2], unpack(taken))
    end
    if exclusive then
      redis.call('SET', KEYS[1], value, 'PX', exclusive.lease)
    elseif granted[1] then
      write_group(group, now_ms)
    end
  end

  if granted[1] or moved then
    -- A caller without the right to publish has handed over all the same: the waiter polls. Several grants of
    -- one channel are the lines of one message.
    local stamp, channels, texts = string.format('%.0f', now), {}, {}
    for _, grant in ipairs(granted) do
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
    local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    local id, mode, kind, channel = string.match(head or '', '^(%S+) (%a)(%S*) %d+ %d+ (%S+) ')
    if id and mode ~= 'p' then
      -- A foreign holder notifies no waiter when it releases: the head has to poll from now on.
      local left = grace
      if more then
        left = 0
      elseif value and string.find(value, '^lk[1s]:') then
        left = math.max(wait_ms(kind, group, now_ms), 0)
      end
      -- Eight digits identify the waiter. They are not enough to forge a grant, which has all digits.
      redis.pcall('PUBLISH', channel,
        'h ' .. string.sub(id, 1, 8) .. ' ' .. stamp .. ' ' .. string.format('%.0f', left))
    end
  end
  return granted, value, grace, more, group
end
