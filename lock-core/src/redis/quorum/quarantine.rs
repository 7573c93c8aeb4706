//! Whether a server counts: one that restarted a moment ago may have forgotten locks that are still held.

use std::time::Duration;

use lock_protocol::clock::Moment;
use lock_protocol::clock_sync::UNKNOWN_RUN_ID;

/// The server tells its uptime in whole seconds, by two readings of a clock that are each rounded down.
const UPTIME_STEP: Duration = Duration::from_secs(1);

/// The process of a server, as a connection to it has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenProcess {
    pub(super) run_id: u64,
    /// When the connection began.
    pub(super) connected_at: Moment,
    /// How long the server ran then.
    pub(super) uptime: Option<Duration>,
}

/// The quarantine of one server.
#[derive(Debug)]
pub(super) struct Quarantine {
    /// How long a server does not count after its restart; zero for none.
    span: Duration,
    /// The process of the server, and the end of its quarantine.
    known: Option<(u64, Moment)>,
}

impl Quarantine {
    pub(super) fn new(span: Duration) -> Self {
        // The clocks of a holder and of this process may differ by a percent each.
        let span = span.saturating_add(span / 50);
        Self { span, known: None }
    }

    /// Records the process that serves a connection. Returns whether it counts now.
    pub(super) fn observe(&mut self, seen: SeenProcess, now: Moment) -> bool {
        let ran = seen
            .uptime
            .map_or(Duration::ZERO, |uptime| uptime.saturating_sub(UPTIME_STEP));
        let ends_at = seen.connected_at.plus(self.span.saturating_sub(ran));
        let ends_at = match self.known {
            Some((run_id, known)) if run_id == seen.run_id => known.min(ends_at),
            _ => ends_at,
        };
        self.known = Some((seen.run_id, ends_at));
        self.has_ended(now)
    }

    /// Returns the run id of the server, if it was ever connected.
    pub(super) fn run_id(&self) -> Option<u64> {
        self.known.map(|(run_id, _)| run_id)
    }

    /// Returns whether the known process counts now. A server that was never connected does not.
    pub(super) fn has_ended(&self, now: Moment) -> bool {
        let Some((run_id, ends_at)) = self.known else {
            return false;
        };
        // Without a run id, a restart would not be noticed.
        self.span.is_zero() || run_id != UNKNOWN_RUN_ID && ends_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Moment {
        Moment::from_millis(seconds * 1000)
    }

    fn seen(run_id: u64, connected_at: u64, uptime: u64) -> SeenProcess {
        SeenProcess {
            run_id,
            connected_at: at(connected_at),
            uptime: Some(Duration::from_secs(uptime)),
        }
    }

    #[test]
    fn quarantine_lasts_from_the_start_of_the_process() {
        let mut quarantine = Quarantine::new(SPAN);
        assert!(!quarantine.has_ended(at(1000)), "never connected");
        assert!(!quarantine.observe(seen(7, 100, 11), at(100)));
        // 60 s and 2 %, less the 10 s for which it ran at least.
        assert!(!quarantine.has_ended(at(151)) && quarantine.has_ended(at(152)));
        assert!(quarantine.observe(seen(7, 200, 111), at(200)));
        assert!(
            !quarantine.observe(seen(8, 300, 0), at(300)),
            "it restarted"
        );
        assert_eq!(quarantine.run_id(), Some(8));
    }

    #[test]
    fn quarantine_without_an_uptime_lasts_from_the_first_sight() {
        let mut quarantine = Quarantine::new(SPAN);
        let first = SeenProcess {
            uptime: None,
            ..seen(7, 100, 0)
        };
        let later = SeenProcess {
            connected_at: at(150),
            ..first
        };
        assert!(!quarantine.observe(first, at(100)));
        assert!(!quarantine.observe(later, at(161)));
        assert!(quarantine.has_ended(at(162)));
    }

    #[test]
    fn server_without_a_run_id_counts_only_without_a_quarantine() {
        let unknown = seen(UNKNOWN_RUN_ID, 100, 1000);
        assert!(!Quarantine::new(SPAN).observe(unknown, at(5000)));
        assert!(Quarantine::new(Duration::ZERO).observe(unknown, at(100)));
    }
}
