//! A resource in memory that checks fencing tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::event::AccessKind;
use crate::record::AcquisitionRecord;
use crate::recorder::Recorder;

/// A resource that locks protect: one number for each lock. It refuses accesses with a token that
/// is lower than the highest token it has seen, and records every access.
///
/// [`increment`](Self::increment) reads the number and writes it back plus one. Then
/// [`Check::LostUpdates`] finds each update that another holder overwrote. The register refuses
/// reads too: otherwise the access of an old holder could come between the read and the write of
/// the new one.
///
/// In a dialect without fencing tokens the register refuses nothing. Then a holder that lost its
/// lock and works on causes a lost update.
///
/// The register is in this process. Record the accesses to a resource outside of it with
/// [`History::accesses`](crate::History::accesses).
///
/// [`Check::LostUpdates`]: crate::Check::LostUpdates
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::LockManager;
/// use lock_testing::{Checker, FencedRegister, Recorder};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let recorder = Recorder::new(LockManager::in_memory());
/// let register = FencedRegister::new(&recorder);
/// let guard = recorder.lock("orders").acquire().await?;
/// register.increment(guard.record(), Duration::from_millis(1)).await?;
/// guard.release().await?;
///
/// let report = Checker::new().check(&recorder.history());
/// report.assert_ok();
/// assert_eq!(report.accepted_writes(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedRegister {
    recorder: Recorder,
    resource: u64,
    numbers: Mutex<HashMap<Arc<str>, Number>>,
}

#[derive(Debug, Default)]
struct Number {
    value: u64,
    highest: Option<u64>,
}

/// The numbers of the registers of this process.
static REGISTERS: AtomicU64 = AtomicU64::new(1);

impl FencedRegister {
    /// Makes a register whose accesses this recorder records.
    #[must_use]
    pub fn new(recorder: &Recorder) -> Self {
        let process = u64::from(recorder.sink.process);
        let number = REGISTERS.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX);
        Self {
            recorder: recorder.clone(),
            // Registers of different processes are different resources.
            resource: process << 32 | number,
            numbers: Mutex::default(),
        }
    }

    fn numbers(&self) -> MutexGuard<'_, HashMap<Arc<str>, Number>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the number that this lock protects, pauses, and writes it back plus one. Returns the
    /// new number, which is the number of increments.
    ///
    /// Another holder that uses the register during the pause shows that the lock failed.
    ///
    /// # Errors
    /// [`StaleToken`] when a later holder has used the register.
    ///
    /// # Cancel safety
    /// The number does not change when the future is dropped in the pause.
    pub async fn increment(
        &self,
        lock: &AcquisitionRecord,
        pause: Duration,
    ) -> Result<u64, StaleToken> {
        let value = self.read(lock)?.saturating_add(1);
        tokio::time::sleep(pause).await;
        self.write(lock, value)?;
        Ok(value)
    }

    /// Returns the number that this lock protects. It begins with 0.
    ///
    /// # Errors
    /// [`StaleToken`] when a later holder has used the register.
    pub fn read(&self, lock: &AcquisitionRecord) -> Result<u64, StaleToken> {
        self.access(lock, AccessKind::Read, AccessKind::RefusedRead)
    }

    /// Replaces the number that this lock protects.
    ///
    /// Write the number that [`read`](Self::read) returned, plus one.
    /// [`Check::LostUpdates`](crate::Check::LostUpdates) takes any other number for a lost update.
    ///
    /// # Errors
    /// [`StaleToken`] when a later holder has used the register.
    pub fn write(&self, lock: &AcquisitionRecord, value: u64) -> Result<(), StaleToken> {
        let accepted = AccessKind::Write { value };
        self.access(lock, accepted, AccessKind::RefusedWrite)
            .map(|_| ())
    }

    fn access(
        &self,
        lock: &AcquisitionRecord,
        accepted: AccessKind,
        refused: AccessKind,
    ) -> Result<u64, StaleToken> {
        // The record is written under the mutex, so that it has the order of the register.
        let mut numbers = self.numbers();
        let number = numbers.entry(lock.key().into()).or_default();
        let token = lock.token();
        let is_stale = token < number.highest;
        let kind = if is_stale { refused } else { accepted };
        self.recorder.sink.write_access(lock, self.resource, kind);
        if is_stale {
            return Err(StaleToken {
                token,
                highest: number.highest,
            });
        }
        number.highest = token;
        if let AccessKind::Write { value } = kind {
            number.value = value;
        }
        Ok(number.value)
    }
}

/// A register refused an access, because a later holder has used it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the resource has seen the fencing token {}, and refuses {}; stop this work, because another \
     holder has the lock",
    shown(*highest),
    shown(*token)
)]
#[non_exhaustive]
pub struct StaleToken {
    /// The token of the access.
    pub token: Option<u64>,
    /// The highest token that the register has seen.
    pub highest: Option<u64>,
}

fn shown(token: Option<u64>) -> String {
    token.map_or_else(|| "no token".to_owned(), |token| token.to_string())
}
