//! Acquires the locks of a set: all of them, or none.

use std::sync::Arc;
use std::time::Duration;

use super::{LockSet, LockSetLost};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::protocol::clock::Moment;
use crate::request::SetMember;
use crate::runtime::inner::ManagerInner;
use crate::runtime::waiter;

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

impl SetMembers {
    /// Acquires the next lock after those that are held.
    async fn next(&self, held: usize, started: Moment) -> Result<LockGuard, LockError> {
        let Some(member) = self.members.get(held) else {
            return Err(LockError::ShuttingDown);
        };
        let spent = self.inner.clock().now().since(started);
        let (key, lease_config) = (member.key.clone(), member.lease_config);
        let acquiring = if self.wait.is_zero() {
            waiter::try_acquire(&self.inner, key, lease_config, spent)?
        } else {
            waiter::acquire(&self.inner, key, lease_config, self.wait, spent)?
        };
        Ok(LockGuard::new(acquiring.await?))
    }
}

/// Acquires the locks in the order of their keys. Dropping the guards releases what was acquired.
pub(super) async fn acquire(set: SetMembers) -> Result<LockSet, LockError> {
    set.inner.check_process()?;
    // Before anything is sent: a set that waits for its own task gets no lock at all.
    for member in &set.members {
        waiter::check(&set.inner, &member.key)?;
    }
    let started = set.inner.clock().now().minus(set.spent);
    let mut guards: Vec<LockGuard> = Vec::with_capacity(set.members.len());
    while guards.len() < set.members.len() {
        let lost = LockSetLost::new(guards.iter().map(LockGuard::lost).collect());
        let next = tokio::select! {
            biased;
            () = lost => None,
            next = set.next(guards.len(), started) => Some(next?),
        };
        guards.extend(next);
        let Some(lost) = guards.iter().find(|guard| guard.is_lost()) else {
            continue;
        };
        if set.wait.is_zero() {
            return Err(LockError::Contended {
                key: lost.key().into(),
                holder: None,
            });
        }
        // A lock was lost while the set waited for another one: start again.
        guards.clear();
    }
    for guard in &mut guards {
        if let Some(min_hold) = set.min_hold {
            guard.set_min_hold(min_hold);
        }
    }
    let names = set.members.into_iter().map(|member| member.name);
    Ok(LockSet::new(guards, names.collect()))
}
