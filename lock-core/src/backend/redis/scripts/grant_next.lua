-- grant_next: while K is free and waiters exist, gives K to the first live waiter.
--
-- Not a script of its own: acquire.lua and release.lua include this function, after the lines that
-- serve a lock without waiters. So does force_release.lua.
--
-- Arguments:
--   command  of the script: time (the reply to TIME), now (microseconds), floor and lead (of tokens),
--            owner_id, ttl and label of the caller, entry of a caller that waits, else ""
--   value    of K; false while K is free
--   moved    whether the queue may have another head than before
-- Returns:
--   owner    who got K: id, lease, token, channel and entry; nil for none
--   value    of K now
--   grace    milliseconds for which K stays free for foreign clients
--   more     whether the scan stopped after 100 dead entries and others stand behind them
--
-- The order of the writes is counter, queue, key, notifications: a script that fails in the middle is
-- not rolled back, and a broken counter leaves the queue as it was.
local function grant_next(command, value, moved)
  local owner, now, grace, more = nil, command.now, 0, false
  if not value then
    local now_ms = math.floor(now / 1000)
    grace = redis.call('PTTL', KEYS[4])
    if grace < 0 then
      grace = 0
      -- The first entry is alive in most cases. A call looks at 100 entries at most, so that it does
      -- not block the server.
      local heads, dead, subscribed = redis.call('ZRANGE', KEYS[2], 0, 0), {}, {}
      local notify_head = false
      while heads[#dead + 1] do
        local head = heads[#dead + 1]
        local id, mode, kind, lease, expires_at, channel, label =
          string.match(head, '^(%S+) (%a)(%S*) (%d+) (%d+) (%S+) (.*)$')
        local is_caller = id == command.owner_id and command.entry == head
        local is_alive = is_caller or id and now_ms <= tonumber(expires_at)
        if is_alive and not is_caller and mode ~= 'p' then
          -- Before K is set: the count that PUBLISH returns comes too late, because the message may
          -- already travel through a replica.
          if subscribed[channel] == nil then
            local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
            subscribed[channel] = count.err ~= nil or count[2] > 0
          end
          is_alive = subscribed[channel]
        end
        if is_alive and (kind ~= '' or mode ~= 's' and mode ~= 'p') then
          -- A waiter of a version that this one does not know: it takes K by itself.
          notify_head = true
          break
        elseif is_alive then
          owner = {id = id, lease = is_caller and command.ttl or lease, label = label,
            channel = not is_caller and mode == 's' and channel, entry = head}
          break
        end
        dead[#dead + 1] = head
        if #dead == 1 then
          heads = redis.call('ZRANGE', KEYS[2], 0, 99)
        elseif #dead == 100 then
          -- Others stand behind this entry, unless it is the last.
          more = redis.call('ZRANGE', KEYS[2], -1, -1)[1] ~= head
          notify_head = more
          break
        end
      end
      -- No waiter is alive: K goes to a caller that makes one attempt.
      if not owner and not notify_head and command.entry == '' then
        owner = {id = command.owner_id, lease = command.ttl, label = command.label}
      end
      moved = moved or notify_head
      if owner then
        owner.dead = dead
      elseif dead[1] then
        redis.call('ZREM', KEYS[2], unpack(dead))
      end
    end
  end

  if owner then
    local floor, lead = command.floor, command.lead
    -- include next_token.lua
    owner.token = token
    owner.dead[#owner.dead + 1] = owner.entry
    if owner.dead[1] then
      redis.call('ZREM', KEYS[2], unpack(owner.dead))
    end
    local seconds, micros = command.time[1], command.time[2]
    local since_ms = seconds .. string.sub('00000' .. micros, -6, -4)
    value = 'lk1:' .. owner.id .. ' ' .. owner.token .. ' ' .. since_ms .. ' ' .. owner.label
    redis.call('SET', KEYS[1], value, 'PX', owner.lease)
  end

  if owner or moved then
    -- A caller without the right to publish has handed over all the same: the waiter polls.
    local stamp = string.format('%.0f', now)
    if owner and owner.channel then
      redis.pcall('PUBLISH', owner.channel,
        'g ' .. owner.id .. ' ' .. owner.token .. ' ' .. stamp .. ' ' .. owner.lease)
    end
    local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
    local id, mode, channel = string.match(head or '', '^(%S+) (%a)%S* %d+ %d+ (%S+) ')
    if id and mode ~= 'p' then
      -- A foreign holder notifies no waiter when it releases: the head has to poll from now on.
      local left = owner and owner.lease or grace
      if not owner and value and string.sub(value, 1, 4) == 'lk1:' then
        left = math.max(redis.call('PTTL', KEYS[1]), 0)
      end
      -- Eight digits identify the waiter. They are not enough to forge a grant, which has all digits.
      redis.pcall('PUBLISH', channel,
        'h ' .. string.sub(id, 1, 8) .. ' ' .. stamp .. ' ' .. string.format('%.0f', left))
    end
  end
  return owner, value, grace, more
end
