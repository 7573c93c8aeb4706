//! The dialects under the names of the schemes in the other programs.

use lock_core::dialect::{Dialect, RedissonLock, ReleaseMethod};

/// Redisson's `RLock`.
pub const REDISSON: &str = "redisson";

/// Redisson's `RFencedLock`, whose tokens both sides check.
pub const REDISSON_FENCED: &str = "redisson-fenced";

/// Returns whether this is a scheme of Redisson.
pub fn is_redisson(scheme: &str) -> bool {
    [REDISSON, REDISSON_FENCED].contains(&scheme)
}

/// Returns the dialect of this name.
pub fn dialect(name: &str) -> Dialect {
    match name {
        "native" => Dialect::Native,
        "setnx-expire" => Dialect::SetnxExpire,
        "deadline-getset" => Dialect::DeadlineGetset,
        "lua-setnx-expire" => Dialect::LuaSetnxExpire,
        "set-nx-px" => Dialect::SetNxPx {
            release: ReleaseMethod::Script,
        },
        "watch-multi" => Dialect::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        },
        REDISSON => Dialect::Redisson {
            lock: RedissonLock::Plain,
        },
        REDISSON_FENCED => Dialect::Redisson {
            lock: RedissonLock::Fenced,
        },
        other => panic!("no dialect `{other}`"),
    }
}
