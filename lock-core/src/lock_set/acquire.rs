//! Acquires the locks of a set: all of them, or none.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{LockSet, LockSetLost};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::request::SetMember;
use crate::runtime::inner::ManagerInner;
use crate::runtime::set::{self, SetPatience};
use crate::runtime::waiter;
use lock_protocol::key::LockKey;
use lock_protocol::lease::LeaseConfig;

/// A checked request for a set.
pub(super) struct SetMembers {
    pub(super) inner: Arc<ManagerInner>,
    /// At least one, in the order of their keys.
    pub(super) members: Vec<SetMember>,
    pub(super) wait: Duration,
    /// The part of the wait that has passed.
    pub(super) spent: Duration,
    pub(super) min_hold: Option<Duration>,
}

/// The locks of a set, as far as they are held. Dropping it releases them.
struct HeldLocks(Vec<Option<LockGuard>>);

impl HeldLocks {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    fn guards(&self) -> impl Iterator<Item = &LockGuard> {
        self.0.iter().flatten()
    }

    /// Returns the numbers of the locks that are not held yet.
    fn missing(&self) -> Vec<usize> {
        let all = self.0.iter().enumerate();
        all.filter_map(|(at, guard)| guard.is_none().then_some(at))
            .collect()
    }

    /// Runs `acquiring`; returns `None` as soon as a held lock is lost.
    async fn unless_lost<T>(&self, acquiring: impl Future<Output = T>) -> Option<T> {
        let lost = LockSetLost::new(self.guards().map(LockGuard::lost).collect());
        tokio::select! {
            biased;
            () = lost => None,
            acquired = acquiring => Some(acquired),
        }
    }

    fn is_lost(&self) -> bool {
        self.guards().any(LockGuard::is_lost)
    }
}

/// Acquires the locks in the order of their keys.
pub(super) async fn acquire(set: SetMembers) -> Result<LockSet, LockError> {
    set.inner.check_process()?;
    let started = set.inner.clock().now().minus(set.spent);
    // Before anything is sent: a set that waits for its own task gets no lock at all.
    for member in &set.members {
        let kind = member.lease_config.kind;
        waiter::check_and_report(&set.inner, &member.key, kind, started)?;
    }
    let patience = SetPatience {
        started,
        wait: set.wait,
    };
    let mut held = HeldLocks::new(set.members.len());
    loop {
        let missing = held.missing();
        if missing.is_empty() {
            break;
        }
        acquire_missing(&set, &mut held, &missing, patience).await?;
        if held.is_lost() {
            // A lock was lost while the set waited for another one: start again within the same wait.
            held = HeldLocks::new(set.members.len());
        }
    }
    let mut guards: Vec<_> = held.0.into_iter().flatten().collect();
    for guard in &mut guards {
        if let Some(min_hold) = set.min_hold {
            guard.set_min_hold(min_hold);
        }
    }
    let names = set.members.into_iter().map(|member| member.name);
    Ok(LockSet::new(guards, names.collect()))
}

/// Sends one command for the missing locks, and then waits for the first one that is busy. Ends early when a
/// held lock is lost.
async fn acquire_missing(
    set: &SetMembers,
    held: &mut HeldLocks,
    missing: &[usize],
    patience: SetPatience,
) -> Result<(), LockError> {
    let member = |at: &usize| {
        let member = &set.members[*at];
        (member.key.clone(), member.lease_config)
    };
    let locks: Vec<(LockKey, LeaseConfig)> = missing.iter().map(member).collect();
    let acquiring = set::acquire(&set.inner, &locks, patience);
    let Some(progress) = held.unless_lost(acquiring).await else {
        return Ok(());
    };
    let progress = progress?;
    for (at, acquired) in progress.acquired {
        held.0[missing[at]] = Some(LockGuard::new(acquired));
    }
    let Some((at, waiting)) = progress.waiting else {
        return Ok(());
    };
    if let Some(acquired) = held.unless_lost(waiting).await {
        held.0[missing[at]] = Some(LockGuard::new(acquired?));
    }
    Ok(())
}
