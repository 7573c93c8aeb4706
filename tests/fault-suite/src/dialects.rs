//! The dialects that clients may speak, and what each lets the judge demand.

use std::time::Duration;

use lock_core::{Dialect, ReleaseMethod};

use crate::history::LONGEST_TTL;

const NAMES: [(Dialect, &str); 6] = [
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
];

/// The dialect of that name.
pub fn named(name: &str) -> Option<Dialect> {
    let found = NAMES.iter().find(|(_, known)| *known == name)?;
    Some(found.0)
}

/// Its name.
///
/// # Panics
///
/// On a dialect that is new and has none yet.
pub fn name(dialect: Dialect) -> &'static str {
    let found = NAMES.iter().find(|(known, _)| *known == dialect);
    found.expect("all dialects are listed").1
}

/// All names.
pub fn names() -> Vec<&'static str> {
    NAMES.iter().map(|(_, name)| *name).collect()
}

/// All but the native one.
pub fn foreign() -> Vec<Dialect> {
    let all = Dialect::ALL.iter().copied();
    all.filter(|dialect| *dialect != Dialect::Native).collect()
}

/// The longest lease that a worker asks for, as long as the dialect can count.
pub fn longest_ttl(dialect: Dialect) -> Duration {
    let step = dialect.capabilities().ttl_step;
    let steps = LONGEST_TTL.as_nanos() / step.as_nanos();
    step * u32::try_from(steps).expect("a step is a millisecond or more")
}

/// Whether a holder that is killed as it takes the lock may leave a key that never goes by
/// itself, until a client tries to acquire it.
pub fn may_leave_unexpiring(dialect: Dialect) -> bool {
    dialect == Dialect::SetnxExpire
}

/// What the requests have in them of which one may get lost: those that take a lock, and those
/// that extend it or give it back.
pub fn requests(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::SetnxExpire => &["\r\nSETNX\r\n", "EVALSHA"],
        Dialect::SetNxPx {
            release: ReleaseMethod::Script,
        } => &["\r\nSET\r\n", "EVALSHA"],
        Dialect::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        } => &["\r\nSET\r\n", "WATCH", "EXEC"],
        _ => &["EVALSHA"],
    }
}
