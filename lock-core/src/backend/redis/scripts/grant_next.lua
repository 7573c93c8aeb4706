-- drive: while K is free and someone waits, K goes to the first live waiter.
--
-- Not a script of its own: acquire.lua and release.lua include it. It reads
--   time         the answer to TIME
--   now, now_ms  server time, the latter nil where it was not needed yet
--   floor, lead    of tokens
--   nonce, ttl, label  who calls      entry    of a caller who waits, else "" or nil
--   value        of K, false if free  owner    a caller who gets K without looking at the queue
--   queue        whether to look at the queue    moved  whether its head may be another now
-- and leaves in owner who got K, in value what K holds now, in grace how long K stays free for
-- foreign clients, and in more whether it stopped at a hundred dead entries with others behind.
-- Order of the writes: counter, queue, key, pushes, since a script that fails in the middle is not
-- rolled back: a broken counter leaves the queue as it was.

local grace, more = 0, false
if queue and not value then
  now_ms = now_ms or math.floor(now / 1000)
  grace = redis.call('PTTL', KEYS[4])
  if grace < 0 then
    grace = 0
    -- The first mostly lives. A hundred at most are looked at, so that no call holds up the server.
    local heads, gone, listeners = redis.call('ZRANGE', KEYS[2], 0, 0), {}, {}
    local unserved = false
    while heads[#gone + 1] do
      local head = heads[#gone + 1]
      local id, mode, kind, lease, expires_at, channel, called =
        string.match(head, '^(%S+) (%a)(%S*) (%d+) (%d+) (%S+) (.*)$')
      local asks_now = id == nonce and entry == head
      local lives = asks_now or id and now_ms <= tonumber(expires_at)
      if lives and not asks_now and mode ~= 'p' then
        -- Asked before K is set: a count that PUBLISH gives comes too late, the message may
        -- already travel through a replica.
        if listeners[channel] == nil then
          local count = redis.pcall('PUBSUB', 'NUMSUB', channel)
          listeners[channel] = count.err ~= nil or count[2] > 0
        end
        lives = listeners[channel]
      end
      if lives and (kind ~= '' or mode ~= 's' and mode ~= 'p') then
        -- A waiter of a version that this one does not know: that takes K by itself.
        unserved = true
        break
      elseif lives then
        owner = {nonce = id, lease = asks_now and ttl or lease, label = called,
          channel = not asks_now and mode == 's' and channel, entry = head}
        break
      end
      gone[#gone + 1] = head
      if #gone == 1 then
        heads = redis.call('ZRANGE', KEYS[2], 0, 99)
      elseif #gone == 100 then
        -- Others stand behind this one, unless it is the last.
        more = redis.call('ZRANGE', KEYS[2], -1, -1)[1] ~= head
        unserved = more
        break
      end
    end
    -- Nobody who waits is alive: then it is free for one who only asks once.
    if not owner and not unserved and entry == '' then
      owner = {nonce = nonce, lease = ttl, label = label}
    end
    moved = moved or unserved
    if owner then
      owner.gone = gone
    elseif gone[1] then
      redis.call('ZREM', KEYS[2], unpack(gone))
    end
  end
end

if owner then
  local number = redis.call('INCR', KEYS[3])
  floor = tonumber(floor)
  if number < floor then
    -- The counter was lost or rolled back, or is new: go on from the time. It ends five minutes after
    -- the time of its seed, so that names that are used once leave nothing; the next seed is higher,
    -- also where the clock was set back since the floor was told.
    number = math.max(floor, now + lead)
    local ends_ms = math.floor(number / 1000) + 300000
    redis.call('SET', KEYS[3], string.format('%.0f', number), 'PXAT', string.format('%.0f', ends_ms))
  end
  -- Above 2^53 a Lua number is not exact, the text is.
  owner.token = number < 9007199254740992 and string.format('%.0f', number) or redis.call('GET', KEYS[3])
  if owner.gone then
    owner.gone[#owner.gone + 1] = owner.entry
    if owner.gone[1] then
      redis.call('ZREM', KEYS[2], unpack(owner.gone))
    end
  end
  -- The milliseconds are cut from the text of the time, which costs less than to write a number.
  local since_ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
  value = 'lk1:' .. owner.nonce .. ' ' .. owner.token .. ' ' .. since_ms .. ' ' .. owner.label
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
  local id, mode, channel = string.match(head or '', '^(%S+) (%a)%S* %d+ %d+ (%S+) ')
  if id and mode ~= 'p' then
    -- A foreign holder tells nobody when it goes: whoever is first has to begin asking now.
    local left = owner and owner.lease or grace
    if not owner and value and string.sub(value, 1, 4) == 'lk1:' then
      left = math.max(redis.call('PTTL', KEYS[1]), 0)
    end
    -- Eight digits find the waiter. Whoever reads them cannot forge a grant, which takes them all.
    redis.pcall('PUBLISH', channel,
      'h ' .. string.sub(id, 1, 8) .. ' ' .. stamp .. ' ' .. string.format('%.0f', left))
  end
end
