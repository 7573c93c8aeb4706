//! The clocks of the runtimes that use a store in memory.
//!
//! Leases in memory end on tokio's clock. Runtimes share the real one. A runtime that has paused its clock has one of
//! its own, and a lease that ends there has not ended for a holder on another runtime. So such a runtime doesn't share a
//! store.

use std::time::Instant;

use tokio::runtime::{Handle, Id};

use crate::error::{BackendErrorKind, LockError};

/// A caller whose clock counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Runtime(Id),
    /// Outside of a runtime, where the clock is the real one.
    Thread,
}

impl User {
    pub(super) fn current() -> Self {
        match Handle::try_current() {
            Ok(runtime) => Self::Runtime(runtime.id()),
            Err(_) => Self::Thread,
        }
    }
}

/// The runtimes that have acquired locks.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The only user so far.
    only: Option<User>,
    are_several: bool,
    /// The only runtime has paused its clock.
    is_paused: bool,
}

impl Users {
    /// Records an acquire. Returns an error if its clock may differ from an earlier one's.
    pub(super) fn admit(&mut self, user: User, is_paused: bool) -> Result<(), LockError> {
        self.check(user, is_paused)?;
        self.are_several |= *self.only.get_or_insert(user) != user;
        self.is_paused |= is_paused;
        Ok(())
    }

    /// Returns an error if the clock of this user may differ from that of an earlier one.
    pub(super) fn check(&self, user: User, is_paused: bool) -> Result<(), LockError> {
        let is_other = self.only.is_some_and(|only| only != user);
        if (is_other && self.is_paused) || (is_paused && (is_other || self.are_several)) {
            return Err(LockError::advised(
                BackendErrorKind::Unsupported,
                "runtimes use this manager in memory together, and one of them has paused its clock",
                "make a manager for each runtime whose clock is paused, and enter it with `scope`",
            ));
        }
        Ok(())
    }
}

/// Returns whether the runtime of the caller has paused its clock, now or before.
pub(super) fn has_paused_clock() -> bool {
    let before = Instant::now();
    let now = tokio::time::Instant::now().into_std();
    let after = Instant::now();
    now < before || after < now
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn runtime(is_paused: bool) -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(is_paused)
            .build()
            .unwrap()
    }

    #[tokio::test]
    async fn clock_is_known_as_paused_also_after_the_pause() {
        assert!(!has_paused_clock());
        tokio::time::pause();
        assert!(has_paused_clock());
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::resume();
        assert!(has_paused_clock());
    }

    #[test]
    fn paused_clock_is_shared_with_no_other_runtime() {
        let [one, other] =
            [runtime(false), runtime(false)].map(|it| User::Runtime(it.handle().id()));
        for first_is_paused in [false, true] {
            for second_is_paused in [false, true] {
                let mut users = Users::default();
                assert!(users.admit(one, false).is_ok());
                // The same runtime may pause its clock later.
                assert!(users.admit(one, first_is_paused).is_ok());
                let second = users.admit(other, second_is_paused);
                assert_eq!(second.is_err(), first_is_paused || second_is_paused);
                assert!(users.admit(one, first_is_paused).is_ok());
                // Only runtimes that were admitted count.
                assert_eq!(users.admit(one, true).is_err(), second.is_ok());
                assert_eq!(users.admit(User::Thread, false).is_err(), second.is_err());
            }
        }
    }
}
