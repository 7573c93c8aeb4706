//! What this process knows of the server's clock, and the validity of a handover by it.

use std::time::Duration;

use crate::clock::{Moment, ServerMs};
use crate::lease::{DRIFT_DIVISOR, ROUNDING};
use crate::ttl::whole_millis;

/// An older clock sync says too little about the server's clock now.
const MAX_SYNC_AGE: Duration = Duration::from_secs(60);

/// The run id of a server that does not report one.
pub const UNKNOWN_RUN_ID: u64 = 0;

/// A pair of a local send time and the server time in the reply. The youngest reply counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockSync {
    /// The local time before the command was sent.
    pub sent: Moment,
    pub server_us: u64,
    /// The identity of the server process.
    pub run_id: u64,
}

impl ClockSync {
    /// The latest time that the server's clock can show now, if it does not jump.
    pub(crate) fn server_ms_at(&self, now: Moment) -> ServerMs {
        let elapsed = u64::try_from(now.since(self.sent).as_millis()).unwrap_or(u64::MAX);
        ServerMs::from_micros(self.server_us).plus(elapsed).plus(1)
    }

    /// The time limit of a command that is sent now.
    pub fn not_after(&self, now: Moment, command_timeout: Duration) -> NotAfter {
        let server_ms = self.server_ms_at(now);
        NotAfter {
            server_ms,
            not_after_ms: server_ms.plus(whole_millis(command_timeout)),
        }
    }
}

/// The time limit of a command, in server time.
#[derive(Clone, Copy, Debug)]
pub struct NotAfter {
    /// The latest time that the server's clock can show when the command is sent.
    pub server_ms: ServerMs,
    /// The latest server time at which the command may take effect.
    pub not_after_ms: ServerMs,
}

/// What a client knows of its server's clock: the clock sync of the youngest reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerClock(Option<ClockSync>);

impl ServerClock {
    /// Records the server time of a reply, unless a younger one is known.
    pub fn record(&mut self, clock_sync: ClockSync) {
        let is_younger = self
            .0
            .is_none_or(|known| known.run_id != clock_sync.run_id || known.sent < clock_sync.sent);
        if is_younger {
            self.0 = Some(clock_sync);
        }
    }

    pub fn youngest(&self) -> Option<ClockSync> {
        self.0
    }

    /// Returns the youngest clock sync with the server process of a connection, which began with
    /// `first`.
    pub fn for_connection(&self, first: ClockSync) -> ClockSync {
        self.0
            .filter(|clock_sync| clock_sync.run_id == first.run_id)
            .unwrap_or(first)
    }
}

/// Returns until when a lock that a notification granted is valid. Returns `None` when this is too
/// uncertain; then a renewal has to confirm the lock first.
pub(crate) fn grant_deadline(
    clock_sync: Option<ClockSync>,
    run_id: u64,
    notified_us: u64,
    lease: Duration,
    received: Moment,
) -> Option<Moment> {
    let known = run_id != UNKNOWN_RUN_ID;
    let clock_sync = clock_sync.filter(|clock_sync| known && clock_sync.run_id == run_id)?;
    let age = received.since(clock_sync.sent);
    if age > MAX_SYNC_AGE {
        return None;
    }
    let offset = i64::try_from(i128::from(notified_us) - i128::from(clock_sync.server_us)).ok()?;
    let start = clock_sync.sent.shifted_us(offset);
    // The server cannot have sent the notification after it was received: a clock jumped.
    if start > received {
        return None;
    }
    let deadline = start
        .plus(lease)
        .minus(age.saturating_add(lease) / DRIFT_DIVISOR)
        .minus(ROUNDING);
    (deadline.since(received) >= lease / 2).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn clock_sync() -> ClockSync {
        ClockSync {
            sent: at(5_000),
            server_us: 1_000_000_000,
            run_id: 1,
        }
    }

    #[test]
    fn grant_is_counted_from_the_server_time_of_the_notification() {
        // Sent 1 s after the clock sync, received 3 ms later.
        let until =
            grant_deadline(Some(clock_sync()), 1, 1_001_000_000, secs(2), at(6_003)).unwrap();
        let margin = (Duration::from_millis(1_003) + secs(2)) / 100 + ROUNDING;
        assert_eq!(until, at(6_000).plus(secs(2)).minus(margin));
    }

    #[test]
    fn grant_with_an_uncertain_time_has_no_deadline() {
        let lease = secs(2);
        let notified = 1_001_000_000;
        assert_eq!(grant_deadline(None, 1, notified, lease, at(6_003)), None);
        assert_eq!(
            grant_deadline(Some(clock_sync()), 2, notified, lease, at(6_003)),
            None
        );
        let without_run_id = ClockSync {
            run_id: UNKNOWN_RUN_ID,
            ..clock_sync()
        };
        let until = grant_deadline(
            Some(without_run_id),
            UNKNOWN_RUN_ID,
            notified,
            lease,
            at(6_003),
        );
        assert_eq!(until, None);
        // The clock sync is older than a minute.
        assert_eq!(
            grant_deadline(Some(clock_sync()), 1, 1_060_000_000, lease, at(65_001)),
            None
        );
        // Sent after it was received: a clock jumped.
        assert_eq!(
            grant_deadline(Some(clock_sync()), 1, notified, lease, at(5_999)),
            None
        );
        // Less than half of the lease is left.
        assert_eq!(
            grant_deadline(Some(clock_sync()), 1, notified, lease, at(7_100)),
            None
        );
    }

    #[test]
    fn clock_sync_gives_the_latest_possible_server_time() {
        assert_eq!(
            clock_sync().server_ms_at(at(5_250)),
            ServerMs::new(1_000_251)
        );
    }

    #[test]
    fn youngest_reply_counts_whatever_its_order_of_arrival() {
        let mut clock = ServerClock::default();
        assert_eq!(clock.youngest(), None);
        let younger = ClockSync {
            sent: at(6_000),
            ..clock_sync()
        };
        clock.record(younger);
        clock.record(clock_sync());
        assert_eq!(clock.youngest(), Some(younger));
        let same_time = ClockSync {
            server_us: 7,
            ..younger
        };
        clock.record(same_time);
        assert_eq!(clock.youngest(), Some(younger));
    }

    #[test]
    fn reply_of_another_server_process_replaces_all_earlier_ones() {
        let mut clock = ServerClock::default();
        clock.record(clock_sync());
        let restarted = ClockSync {
            sent: at(4_000),
            run_id: 2,
            ..clock_sync()
        };
        clock.record(restarted);
        assert_eq!(clock.youngest(), Some(restarted));
    }

    #[test]
    fn connection_uses_only_clock_syncs_of_its_own_server_process() {
        let first = ClockSync {
            sent: at(1_000),
            ..clock_sync()
        };
        let mut clock = ServerClock::default();
        assert_eq!(clock.for_connection(first), first);
        clock.record(clock_sync());
        assert_eq!(clock.for_connection(first), clock_sync());
        let other = ClockSync { run_id: 2, ..first };
        assert_eq!(clock.for_connection(other), other);
    }

    #[test]
    fn command_may_act_for_the_command_timeout() {
        let not_after = clock_sync().not_after(at(5_250), secs(1));
        assert_eq!(not_after.server_ms, ServerMs::new(1_000_251));
        assert_eq!(not_after.not_after_ms, ServerMs::new(1_001_251));
    }
}
