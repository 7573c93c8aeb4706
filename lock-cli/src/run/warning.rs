//! The signal that warns CMD before the lock is lost.

use std::future::pending;
use std::time::Duration;

use lock_core::LockSet;

use crate::args::WarnSignal;

/// How often to look whether the lock is safe again, while it is at risk.
const LOOK: Duration = Duration::from_millis(100);

/// Says when CMD gets its warnings.
pub(super) struct Warnings<'a> {
    locks: &'a LockSet,
    signal: Option<WarnSignal>,
    /// CMD got the signal, and no renewal has succeeded since.
    is_warned: bool,
}

impl<'a> Warnings<'a> {
    pub(super) fn new(locks: &'a LockSet, signal: Option<WarnSignal>) -> Self {
        Self {
            locks,
            signal,
            is_warned: false,
        }
    }

    /// Waits for the next warning. May be dropped at any time.
    pub(super) async fn next(&mut self) -> WarnSignal {
        let Some(signal) = self.signal else {
            return pending().await;
        };
        while self.is_warned {
            tokio::time::sleep(LOOK).await;
            self.is_warned = self.locks.is_at_risk();
        }
        self.locks.at_risk().await;
        if self.locks.is_lost() {
            // The loss has a signal of its own.
            return pending().await;
        }
        self.is_warned = true;
        signal
    }
}
