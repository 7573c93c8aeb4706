-- attempt: runs a command whose error the script handles.
--
-- A part, not a script of its own: it stands in front of what calls it, and in acquire.lua and release.lua behind the
-- fast path.
--
-- Hands back the reply, or nothing, the error as a reply, and whether the key has another type. Every engine ends a
-- script when redis.call fails, and Lua's pcall catches that. What redis.pcall hands back differs between engines: a
-- table with `err`, another table, a string, or nothing because it raises as well. A string would pass for a value.
local function attempt(...)
  local is_done, reply = pcall(redis.call, ...)
  local is_table = type(reply) == 'table'
  if is_done and not (is_table and reply.err) then
    return reply
  end
  local text = tostring(is_table and (reply.err or reply[1]) or reply)
  return nil, {err = text}, string.find(text, 'WRONGTYPE', 1, true) ~= nil
end
