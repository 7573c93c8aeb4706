//! A resource in memory that checks fencing tokens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::AccessKind;
use crate::record::AcquisitionRecord;
use crate::recorder::Recorder;

/// A resource that locks protect: one number for each lock. It refuses accesses with a token that
/// is lower than the highest token it has seen, and records every access.
///
/// Read the number, and write it back plus one. Then [`Check::LostUpdates`] finds each update that
/// another holder overwrote. It refuses reads too: otherwise the access of an old holder could come
/// between the read and the write of the new one.
///
/// The register is in this process. Record the accesses to a resource outside of it with
/// [`History::accesses`](crate::History::accesses).
///
/// [`Check::LostUpdates`]: crate::Check::LostUpdates
///
/// ```
/// use lock_core::LockManager;
/// use lock_testing::{Checker, FencedRegister, Recorder};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let recorder = Recorder::new(LockManager::in_memory());
/// let register = FencedRegister::new(&recorder);
/// let guard = recorder.lock("orders").acquire().await?;
/// let value = register.read(guard.record())?;
/// register.write(guard.record(), value + 1)?;
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

    /// Returns the number that this lock protects. It begins with 0.
    ///
    /// # Errors
    /// [`StaleToken`] when a later holder has used the register.
    pub fn read(&self, lock: &AcquisitionRecord) -> Result<u64, StaleToken> {
        self.access(lock, AccessKind::Read, AccessKind::RefusedRead)
    }

    /// Replaces the number that this lock protects.
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
