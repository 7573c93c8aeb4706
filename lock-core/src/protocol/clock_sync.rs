//! The server's clock as this process knows it, and the validity of a handover by it.

use std::time::Duration;

use crate::protocol::clock::{Moment, ServerMs};
use crate::protocol::lease::{DRIFT_DIVISOR, ROUNDING};

/// A clock sync older than this says too little about the server's clock now.
const MAX_SYNC_AGE: Duration = Duration::from_secs(60);

/// The life of a server that does not tell which it is.
pub(crate) const UNKNOWN_RUN_ID: u64 = 0;

/// Where the server's clock was, seen from here: the youngest reply that told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClockSync {
    /// Before the command was sent.
    pub(crate) sent: Moment,
    pub(crate) server_us: u64,
    /// Which life of which server.
    pub(crate) run_id: u64,
}

impl ClockSync {
    /// The latest that the server's clock can show now, if it does not jump.
    pub(crate) fn server_ms_at(&self, now: Moment) -> ServerMs {
        let elapsed = u64::try_from(now.since(self.sent).as_millis()).unwrap_or(u64::MAX);
        ServerMs::from_micros(self.server_us).plus(elapsed).plus(1)
    }
}

/// Until when a lock that was handed over by a push is valid; `None` when that cannot be said
/// well enough, and a renewal has to confirm it first.
pub(crate) fn grant_deadline(
    clock_sync: Option<ClockSync>,
    run_id: u64,
    pushed_us: u64,
    lease: Duration,
    received: Moment,
) -> Option<Moment> {
    let known = run_id != UNKNOWN_RUN_ID;
    let clock_sync = clock_sync.filter(|clock_sync| known && clock_sync.run_id == run_id)?;
    let age = received.since(clock_sync.sent);
    if age > MAX_SYNC_AGE {
        return None;
    }
    let offset = i64::try_from(i128::from(pushed_us) - i128::from(clock_sync.server_us)).ok()?;
    let start = clock_sync.sent.shifted_us(offset);
    // The push cannot have been sent after it was received: a clock jumped.
    if start > received {
        return None;
    }
    let deadline = start
        .plus(lease)
        .minus(age.saturating_add(lease) / DRIFT_DIVISOR)
        .minus(ROUNDING);
    (deadline.since(received) >= lease / 2).then_some(deadline)
}
