//! The dialects that clients use, and what the checks may require of each.

use std::time::Duration;

use lock_core::dialect::{Dialect, RedissonLock, ReleaseMethod};

use crate::history::LONGEST_TTL;

/// The dialect that not all servers support. Where they do, `Auto` runs the same commands.
const SERVER_COMMANDS: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Conditional,
};

const NAMES: [(Dialect, &str); 10] = [
    (Dialect::Native, "native"),
    (Dialect::SetnxExpire, "setnx-expire"),
    (Dialect::DeadlineGetset, "deadline-getset"),
    (Dialect::LuaSetnxExpire, "lua-setnx-expire"),
    (
        Dialect::SetNxPx {
            release: ReleaseMethod::Script,
        },
        "set-nx-px",
    ),
    (
        Dialect::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        },
        "watch-multi",
    ),
    (SERVER_COMMANDS, "set-nx-px-conditional"),
    (
        Dialect::SetNxPx {
            release: ReleaseMethod::Auto,
        },
        "set-nx-px-auto",
    ),
    (
        Dialect::Redisson {
            lock: RedissonLock::Plain,
        },
        "redisson",
    ),
    (
        Dialect::Redisson {
            lock: RedissonLock::Fenced,
        },
        "redisson-fenced",
    ),
];

/// Returns the dialect with this name.
pub fn named(name: &str) -> Option<Dialect> {
    let found = NAMES.iter().find(|(_, known)| *known == name)?;
    Some(found.0)
}

/// Returns the dialect's name.
///
/// # Panics
///
/// Panics if the dialect is new and has no name here yet.
pub fn name(dialect: Dialect) -> &'static str {
    let found = NAMES.iter().find(|(known, _)| *known == dialect);
    found.expect("all dialects are listed").1
}

/// Returns all names.
pub fn names() -> Vec<&'static str> {
    NAMES.iter().map(|(_, name)| *name).collect()
}

/// Returns the dialects that every server supports, except the native one.
pub fn foreign() -> Vec<Dialect> {
    let all = Dialect::all().iter().copied();
    all.filter(|dialect| ![Dialect::Native, SERVER_COMMANDS].contains(dialect))
        .collect()
}

/// Returns the longest ttl that a worker uses, in the dialect's resolution.
pub fn longest_ttl(dialect: Dialect) -> Duration {
    let step = dialect.capabilities().ttl_step();
    let steps = LONGEST_TTL.as_nanos() / step.as_nanos();
    step * u32::try_from(steps).expect("a step is a millisecond or more")
}

/// Returns whether a holder that is killed while it acquires may leave a key without an expiry.
/// Such a key stays until another client tries to acquire the lock.
pub fn may_leave_unexpiring(dialect: Dialect) -> bool {
    dialect == Dialect::SetnxExpire
}

/// Returns the strings that identify requests that a nemesis may lose: acquires, renewals and
/// releases.
pub fn requests(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::SetnxExpire => &["\r\nSETNX\r\n", "EVALSHA"],
        Dialect::SetNxPx {
            release: ReleaseMethod::Script,
        } => &["\r\nSET\r\n", "EVALSHA"],
        Dialect::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        } => &["\r\nSET\r\n", "WATCH", "EXEC"],
        SERVER_COMMANDS => &["\r\nSET\r\n", "IFEQ"],
        Dialect::SetNxPx {
            release: ReleaseMethod::Auto,
        } => &["\r\nSET\r\n"],
        _ => &["EVALSHA"],
    }
}
