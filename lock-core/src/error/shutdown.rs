//! The error of a shutdown.

/// The error of a [`LockManager::shutdown`](crate::LockManager::shutdown) that ended with guards or
/// releases left.
///
/// The background worker continues them while the process runs. If the process ends first, each lock
/// expires with its ttl. There is one exception: in the dialect
/// [`SetnxExpire`](crate::dialect::Dialect::SetnxExpire) a lock may have no expiry, if the command that sets
/// the expiry got no reply.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} not released within the shutdown timeout{}; each of them expires with its ttl at the latest",
    locks_were(open + held),
    guards(*held)
)]
#[non_exhaustive]
pub struct ShutdownIncomplete {
    /// How many releases, cancels and acquires were still open. The number includes releases that the server
    /// refused because the user lost the right to run them, while their lease lasts.
    pub open: usize,
    /// How many guards still existed. Their locks are renewed until the guards are dropped.
    pub held: usize,
}

fn locks_were(count: usize) -> String {
    match count {
        1 => "1 lock was".to_owned(),
        count => format!("{count} locks were"),
    }
}

fn guards(held: usize) -> String {
    match held {
        0 => String::new(),
        held => format!(", {held} of them because their guards still exist"),
    }
}
