//! Acquires the locks of a set: all of them, or none.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Names;
use super::lock_request::{Acquirable, Acquisition, Attempts};
use super::settings::{Checked, Settings};
use crate::error::LockError;
use crate::guard::{LockGuard, LockSet, LossSignal};
use crate::runtime::inner::ManagerInner;
use crate::runtime::set::{self, SetPatience};
use crate::runtime::waiter::{self, Waits};
use lock_protocol::key::LockKey;
use lock_protocol::kind::{InvalidKindReason, MAX_NAMES};
use lock_protocol::lease::LeaseConfig;

impl Acquirable for Names {
    type Granted = Vec<LockGuard>;
    type Rest = ();
    type Held = LockSet;

    fn start(
        self,
        settings: &Settings,
        attempts: Attempts,
    ) -> Result<(Acquisition<Vec<LockGuard>>, ()), LockError> {
        let members = self.check(settings)?;
        // An override of one of the names limits the wait for all of them.
        let wait = members.iter().map(|member| member.wait).min();
        let wait = wait.filter(|_| attempts == Attempts::UntilWaitEnds);
        let set = Set {
            inner: Arc::clone(&settings.inner),
            members,
            waits: Waits {
                wait: wait.unwrap_or_default(),
                max_queue: settings.max_queue,
                outage: settings.outage_wait(),
            },
            spent: settings.spent(),
        };
        Ok((Box::pin(acquire(set)), ()))
    }

    fn held((): (), granted: Vec<LockGuard>) -> LockSet {
        LockSet::new(granted)
    }
}

impl Names {
    /// Checks the settings for each name. Returns the locks in the order of their keys; a name that is listed twice is
    /// there once.
    fn check(&self, settings: &Settings) -> Result<Vec<Checked>, LockError> {
        let mut members = Vec::with_capacity(self.0.len().min(MAX_NAMES));
        for name in &self.0 {
            members.push(settings.check(name)?);
        }
        // Text compares by its bytes.
        members.sort_by(|one, other| one.key.as_str().cmp(other.key.as_str()));
        members.dedup_by(|later, earlier| later.key.as_str() == earlier.key.as_str());
        match members.len() {
            0 => Err(settings.invalid_kind(InvalidKindReason::NoNames)),
            1..=MAX_NAMES => Ok(members),
            _ => Err(settings.invalid_kind(InvalidKindReason::TooManyNames)),
        }
    }
}

/// A checked request for a set.
struct Set {
    inner: Arc<ManagerInner>,
    /// At least one, in the order of their keys.
    members: Vec<Checked>,
    waits: Waits,
    /// The part of the wait that has passed.
    spent: Duration,
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
        tokio::select! {
            biased;
            () = LossSignal::of(self.guards()) => None,
            acquired = acquiring => Some(acquired),
        }
    }

    fn is_lost(&self) -> bool {
        self.guards().any(LockGuard::is_lost)
    }
}

/// Acquires the locks in the order of their keys.
async fn acquire(set: Set) -> Result<Vec<LockGuard>, LockError> {
    set.inner.check_process()?;
    let patience = SetPatience::new(&set.inner, set.waits, set.spent);
    let started = patience.started();
    // Before anything is sent: a set that waits for its own task gets no lock at all.
    for member in &set.members {
        let kind = member.lease_config.kind;
        waiter::check_and_report(&set.inner, &member.key, kind, started)?;
    }
    let mut held = HeldLocks::new(set.members.len());
    loop {
        let missing = held.missing();
        if missing.is_empty() {
            return Ok(held.0.into_iter().flatten().collect());
        }
        acquire_missing(&set, &mut held, &missing, &patience).await?;
        if held.is_lost() {
            // A lock was lost while the set waited for another one: start again within the same wait.
            held = HeldLocks::new(set.members.len());
        }
    }
}

/// Sends one command for the missing locks, and then waits for the first one that is busy. Ends early when a
/// held lock is lost.
async fn acquire_missing(
    set: &Set,
    held: &mut HeldLocks,
    missing: &[usize],
    patience: &SetPatience,
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

#[cfg(test)]
mod tests;
