-- drive: while K is free and someone waits, K goes to the first live waiter.
--
-- Not a script of its own: acquire.lua and release.lua include it. It reads
--   now, now_ms  server time          floor    of tokens
--   nonce, ttl, label  who calls      entry    of a caller who waits, else "" or nil
--   value        of K, false if free  owner    a caller who gets K without looking at the queue
--   queue        whether to look at the queue    moved  whether its head may be another now
-- and leaves in owner who got K, in value what K holds now, in grace how long K stays free
-- for foreign clients. Order of the writes: counter, key, pushes, since a script that fails
-- in the middle is not rolled back.

local grace = 0
if queue and not value then
  grace = redis.call('PTTL', KEYS[4])
  if grace < 0 then
    grace = 0
    while not owner do
      local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
      if not head then
        break
      end
      local id, mode, lease, gone_at, channel, called =
        string.match(head, '^(%S+) (%a) (%d+) (%d+) (%S+) (.*)$')
      if id and id == nonce and entry == head then
        owner = {nonce = id, lease = ttl, label = called}
      elseif id and now_ms <= tonumber(gone_at) then
        -- Asked before K is set: a count that PUBLISH gives comes too late, the message may
        -- already travel through a replica.
        local heard = mode ~= 's' or redis.pcall('PUBSUB', 'NUMSUB', channel)
        if heard == true or heard.err or heard[2] > 0 then
          owner = {nonce = id, lease = tonumber(lease), label = called, channel = mode == 's' and channel}
        end
      end
      redis.call('ZREM', KEYS[2], head)
    end
    -- Nobody who waits is alive: then it is free for one who only asks once.
    if not owner and entry == '' then
      owner = {nonce = nonce, lease = ttl, label = label}
    end
  end
end

if owner then
  local number = redis.call('INCR', KEYS[3])
  if number < floor then
    -- The counter was lost or rolled back, or is new: go on from the time.
    number = math.max(floor, now)
    redis.call('SET', KEYS[3], string.format('%.0f', number), 'EX', 86400)
  end
  -- Above 2^53 a Lua number is not exact, the text is.
  owner.token = number < 9007199254740992 and string.format('%.0f', number) or redis.call('GET', KEYS[3])
  value = 'lk1:' .. owner.nonce .. ' ' .. owner.token .. ' ' .. owner.label
  redis.call('SET', KEYS[1], value, 'PX', owner.lease)
end

if queue and (owner or moved) then
  -- Whoever may not publish has still handed over: the waiter looks by itself.
  local stamp = string.format('%.0f', now)
  if owner and owner.channel then
    redis.pcall('PUBLISH', owner.channel,
      'g ' .. owner.nonce .. ' ' .. owner.token .. ' ' .. stamp .. ' ' .. owner.lease)
  end
  local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  local id, channel = string.match(head or '', '^(%S+) s %d+ %d+ (%S+) ')
  if id then
    -- A foreign holder tells nobody when it goes: whoever is first has to begin asking now.
    local left = owner and owner.lease or grace
    if not owner and value and string.sub(value, 1, 4) == 'lk1:' then
      left = math.max(redis.call('PTTL', KEYS[1]), 0)
    end
    redis.pcall('PUBLISH', channel, 'h ' .. id .. ' ' .. stamp .. ' ' .. string.format('%.0f', left))
  end
end
