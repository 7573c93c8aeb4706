//! The measurements that the acts share.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use examples::server::{Server, connect};
use lock_core::LockGuard;
use tokio::time::sleep;

use crate::by_hand;

/// Longer than any act takes.
pub const LONG: Duration = Duration::from_secs(30);

pub type BoxError = Box<dyn Error + Send + Sync>;

/// Formats a time for the table.
pub fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// The result of an act: a row of the table.
pub struct ActResult {
    pub mistake: &'static str,
    pub by_hand: String,
    pub library: String,
}

/// Records when clients believed that they held the lock, on one monotonic clock.
#[derive(Clone, Default)]
pub struct HolderLog(Arc<Mutex<Vec<(Instant, Instant)>>>);

/// A client believes that it holds the lock until this value is dropped.
pub struct HeldPeriod {
    since: Instant,
    log: HolderLog,
}

impl HolderLog {
    pub fn enter(&self) -> HeldPeriod {
        HeldPeriod {
            since: Instant::now(),
            log: self.clone(),
        }
    }

    /// Works under a lock that is written by hand, which cannot report its loss.
    pub async fn work(&self, time: Duration) {
        let _period = self.enter();
        sleep(time).await;
    }

    /// Works under a guard until the lock is lost.
    pub async fn work_under(&self, guard: &LockGuard, time: Duration) {
        let _period = self.enter();
        tokio::select! {
            () = guard.lost() => {}
            () = sleep(time) => {}
        }
    }

    /// Returns for how long there were two or more holders.
    pub fn two_holders(&self) -> Duration {
        let mut changes: BTreeMap<Instant, i32> = BTreeMap::new();
        for &(begin, end) in self.0.lock().unwrap().iter() {
            *changes.entry(begin).or_default() += 1;
            *changes.entry(end).or_default() -= 1;
        }
        let changes: Vec<(Instant, i32)> = changes.into_iter().collect();
        let (mut holders, mut both) = (0, Duration::ZERO);
        for pair in changes.windows(2) {
            holders += pair[0].1;
            if holders > 1 {
                both += pair[1].0 - pair[0].0;
            }
        }
        both
    }
}

impl Drop for HeldPeriod {
    fn drop(&mut self) {
        let period = (self.since, Instant::now());
        self.log.0.lock().unwrap().push(period);
    }
}

/// The longest wait of the measured client of an act.
#[derive(Default)]
pub struct LongestWait {
    pub wait: Duration,
    /// The number of sections that other clients ran during the wait.
    pub sections: u32,
    /// Whether the client got the lock before the measurement ended.
    pub served: bool,
}

impl LongestWait {
    /// Returns the text for the table.
    pub fn shown(&self) -> String {
        let waits = if self.served {
            "waits"
        } else {
            "still waits after"
        };
        let (wait, sections) = (ms(self.wait), self.sections);
        format!("{waits} {wait}, while {sections} other sections run")
    }
}

/// For how long a client that retried did not get the lock.
#[derive(Clone, Copy)]
pub enum Blocked {
    /// Then it got the lock.
    For(Duration),
    /// It did not get the lock within the timeout.
    UntilTimeout(Duration),
}

/// Retries until the attempt succeeds or `timeout` ends.
pub async fn blocked_for(
    timeout: Duration,
    mut attempt: impl AsyncFnMut() -> Result<bool, BoxError>,
) -> Result<Blocked, BoxError> {
    let begin = Instant::now();
    let mut blocked = Duration::ZERO;
    while !attempt().await? {
        blocked = begin.elapsed();
        if blocked >= timeout {
            return Ok(Blocked::UntilTimeout(blocked));
        }
        sleep(by_hand::POLL).await;
    }
    Ok(Blocked::For(blocked))
}
