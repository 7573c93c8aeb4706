//! Until when a command without a reply may take effect, and which replies prove that it cannot any more.

use std::time::Duration;

use crate::cleanup::ReleaseOutcome;
use crate::clock::{Moment, ServerMs};

/// How much longer than its time limit a command counts, by this machine's clock: the limit is in the
/// server's time, which this client knows with an error.
const MARGIN: Duration = Duration::from_secs(1);

/// Stands for several server processes, and for one that does not show its run id. No reply has this run id.
pub const ANY_PROCESS: u64 = u64::MAX;

/// The server processes that may still run copies of an acquire, and until when.
///
/// The limit of a copy is in the time of the process that it was sent to. After a failover, a restart or
/// a move of the slot, another process replies, whose clock says nothing about that limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unconfirmed {
    until_ms: ServerMs,
    /// The process that the copies were sent to, or [`ANY_PROCESS`].
    run_id: u64,
    /// Each process refused them, by the clock of this machine, when a release was sent whose reply arrives later.
    ends_at: Moment,
}

impl Unconfirmed {
    /// A copy that is sent now to this process. It may take effect until `until_ms` of its clock.
    pub fn new(until_ms: ServerMs, run_id: u64, now: Moment, command_timeout: Duration) -> Self {
        Self {
            until_ms,
            run_id,
            // A copy may arrive for one timeout. The reply to a release may take another one.
            ends_at: now.plus(command_timeout.saturating_mul(2)).plus(MARGIN),
        }
    }

    /// Adds another copy.
    pub fn and(self, other: Self) -> Self {
        Self {
            until_ms: self.until_ms.max(other.until_ms),
            run_id: if self.run_id == other.run_id {
                self.run_id
            } else {
                ANY_PROCESS
            },
            ends_at: self.ends_at.max(other.ends_at),
        }
    }

    /// Returns how long the release has to wait before it is sent again; `None` if this reply, which
    /// arrived now, proves that no copy takes effect any more.
    pub(crate) fn time_left(&self, outcome: &ReleaseOutcome, now: Moment) -> Option<Duration> {
        const SHORTEST: Duration = Duration::from_millis(1);
        if !self.is_of_another(outcome.run_id) {
            let server_ms = outcome.server_ms.unwrap_or(ServerMs::new(0));
            let left = Duration::from_millis(self.until_ms.since(server_ms));
            return (server_ms <= self.until_ms).then(|| left.saturating_add(SHORTEST));
        }
        (now <= self.ends_at).then(|| self.ends_at.since(now).saturating_add(SHORTEST))
    }

    /// Returns whether copies may have been sent to another process than this one.
    pub(crate) fn is_of_another(self, run_id: u64) -> bool {
        self.run_id == ANY_PROCESS || self.run_id != run_id
    }

    /// Returns until when a copy may take effect, in the time of the server.
    pub(crate) fn until_ms(self) -> ServerMs {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    /// A copy that was sent at 100 ms and may take effect until 5,000 ms of the server's clock.
    fn sent_to(run_id: u64) -> Unconfirmed {
        Unconfirmed::new(ServerMs::new(5_000), run_id, at(100), TIMEOUT)
    }

    fn reply(run_id: u64, server_ms: u64) -> ReleaseOutcome {
        ReleaseOutcome::without_waiters(false, ServerMs::new(server_ms)).told_by(run_id)
    }

    fn left(unconfirmed: &Unconfirmed, outcome: &ReleaseOutcome, now: u64) -> Option<u128> {
        let left = unconfirmed.time_left(outcome, at(now));
        left.map(|left| left.as_millis())
    }

    #[test]
    fn clock_of_the_same_process_decides() {
        let sent = sent_to(7);
        assert_eq!(left(&sent, &reply(7, 4_000), 200), Some(1_001));
        assert_eq!(left(&sent, &reply(7, 5_000), 200), Some(1));
        assert_eq!(left(&sent, &reply(7, 5_001), 200), None);
        let without_time = ReleaseOutcome {
            server_ms: None,
            ..reply(7, 0)
        };
        assert!(left(&sent, &without_time, 200).is_some());
    }

    #[test]
    fn clock_of_another_process_proves_nothing() {
        let sent = sent_to(7);
        // Its clock is an hour ahead.
        let ahead = reply(8, 3_600_000);
        assert_eq!(left(&sent, &ahead, 200), Some(2_901));
        assert_eq!(left(&sent, &ahead, 3_100), Some(1));
        assert_eq!(left(&sent, &ahead, 3_101), None);
        // And a clock that is behind does not keep the release forever.
        assert_eq!(left(&sent, &reply(8, 0), 3_101), None);
    }

    #[test]
    fn copies_to_several_processes_end_by_the_local_clock() {
        let later = Unconfirmed::new(ServerMs::new(400), 8, at(900), TIMEOUT);
        let both = sent_to(7).and(later);
        for run_id in [7, 8] {
            assert_eq!(left(&both, &reply(run_id, 6_000), 1_000), Some(2_901));
            assert_eq!(left(&both, &reply(run_id, 6_000), 3_901), None);
        }
        let same = sent_to(7).and(Unconfirmed::new(ServerMs::new(5_900), 7, at(900), TIMEOUT));
        assert_eq!(same.until_ms(), ServerMs::new(5_900));
        assert_eq!(left(&same, &reply(7, 5_901), 1_000), None);
    }
}
