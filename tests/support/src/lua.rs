//! Lua lines that make a server's scripts run as on another engine.

/// Returns lines for the start of a script, behind its first line: after an error, `redis.pcall` does this with its
/// `reply`, a table with `err`.
pub fn lua_of_another_engine(on_error: &str) -> String {
    format!(
        "local redis = (function(own)
           local function other_pcall(...)
             local reply = own.pcall(...)
             if type(reply) == 'table' and reply.err then {on_error} end
             return reply
           end
           return setmetatable({{pcall = other_pcall}}, {{__index = own}})
         end)(redis)\n"
    )
}
