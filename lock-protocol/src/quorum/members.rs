//! Which servers of a quorum count: each server once, and only if it remembers what it granted.
//!
//! A server that restarted may have forgotten locks that are still held, so it doesn't count until they must all have
//! ended. This time is its *quarantine*, which is at least as long as the longest ttl. Only the server's own clock tells
//! when it restarted, and somebody may set that clock forward afterwards, so this machine's clock decides wherever it can:
//!
//! | The process | The quarantine begins |
//! |---|---|
//! | replaced a process that this manager knew | when the old process was last seen to run, or when the new one says it started, if that is later |
//! | is the first that this manager sees | when it says it started, or at first sight if it doesn't say |
//! | is the known one | no new quarantine |
//!
//! Two addresses may lead to one server, from the beginning or after a name has moved. The address that connected first
//! then counts, and the other is a *duplicate* until it leads to another process. Votes follow the same idea: an attempt
//! keeps the first vote of a process, and a lease counts it at the address that confirmed last.
//!
//! A run id changes when a server restarts. So without a quarantine, a server with two addresses can get two votes in
//! one attempt or one renewal that spans its restart: one from each process.

use std::time::Duration;

use super::MetProcess;
use crate::clock::Moment;
use crate::clock_sync::UNKNOWN_RUN_ID;

/// The server tells its uptime in whole seconds, by two readings of a clock that are each rounded down.
const UPTIME_STEP: Duration = Duration::from_secs(1);

/// The process of a server, as a connection to it has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenProcess {
    pub run_id: u64,
    /// When the connection began.
    pub connected_at: Moment,
    /// How long the server ran then, by its own clock.
    pub uptime: Option<Duration>,
}

/// Whether a server counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Counts,
    /// It restarted a moment ago.
    Quarantined,
    /// It is the same server as this member.
    Duplicate(usize),
}

/// What is known of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// It was never connected.
    Unknown,
    Process {
        run_id: u64,
        /// The end of its quarantine.
        counts_at: Moment,
    },
    Duplicate {
        of: usize,
    },
}

/// The servers of a quorum.
#[derive(Debug)]
pub struct Members {
    /// Zero for none.
    quarantine: Duration,
    members: Box<[Member]>,
}

impl Members {
    pub fn new(count: usize, quarantine: Duration) -> Self {
        Self {
            // The clocks of a holder and of this process may differ by a percent each.
            quarantine: quarantine.saturating_add(quarantine / 50),
            members: vec![Member::Unknown; count].into(),
        }
    }

    /// Records the process to which a new connection of a member leads. `last_alive` is when the process that was known
    /// before was last seen to run.
    pub fn connected(&mut self, member: usize, seen: SeenProcess, last_alive: Moment) {
        let Some(&known) = self.members.get(member) else {
            return;
        };
        if matches!(known, Member::Process { run_id, .. } if run_id == seen.run_id) {
            return;
        }
        let first = self.members.iter().position(
            |other| matches!(other, Member::Process { run_id, .. } if *run_id == seen.run_id),
        );
        self.members[member] = match first {
            Some(of) if seen.run_id != UNKNOWN_RUN_ID => Member::Duplicate { of },
            _ => Member::Process {
                run_id: seen.run_id,
                counts_at: self.counts_at(known, seen, last_alive),
            },
        };
    }

    /// Returns the end of the quarantine of a process that is new to this manager.
    fn counts_at(&self, known: Member, seen: SeenProcess, last_alive: Moment) -> Moment {
        let ran = seen.uptime.map(|it| it.saturating_sub(UPTIME_STEP));
        let left = self.quarantine.saturating_sub(ran.unwrap_or_default());
        let by_its_clock = seen.connected_at.plus(left);
        match known {
            Member::Unknown => by_its_clock,
            Member::Process { .. } => {
                let last_alive = last_alive.min(seen.connected_at);
                by_its_clock.max(last_alive.plus(self.quarantine))
            }
            // What was known before is forgotten.
            Member::Duplicate { .. } => seen.connected_at.plus(self.quarantine),
        }
    }

    /// Returns the run id of a member. `None` if it was never connected, or is a duplicate.
    pub fn run_id(&self, member: usize) -> Option<u64> {
        match self.members.get(member)? {
            Member::Process { run_id, .. } => Some(*run_id),
            Member::Unknown | Member::Duplicate { .. } => None,
        }
    }

    /// Returns the process of a member, and whether it counts now. `None` if it was never connected, or is a duplicate.
    pub fn process(&self, member: usize, now: Moment) -> Option<MetProcess> {
        Some(MetProcess {
            run_id: self.run_id(member)?,
            counts: self.standing(member, now) == Some(Standing::Counts),
        })
    }

    /// Returns whether a member counts now. `None` if it was never connected.
    pub fn standing(&self, member: usize, now: Moment) -> Option<Standing> {
        match *self.members.get(member)? {
            Member::Unknown => None,
            Member::Duplicate { of } => Some(Standing::Duplicate(of)),
            Member::Process { run_id, counts_at } => {
                // Without a run id, a restart would not be noticed.
                let counts =
                    self.quarantine.is_zero() || (run_id != UNKNOWN_RUN_ID && counts_at <= now);
                Some(if counts {
                    Standing::Counts
                } else {
                    Standing::Quarantined
                })
            }
        }
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

    fn counts(members: &Members, member: usize, now: u64) -> bool {
        members.standing(member, at(now)) == Some(Standing::Counts)
    }

    #[test]
    fn first_process_tells_its_start() {
        let mut members = Members::new(1, SPAN);
        assert_eq!(members.standing(0, at(1000)), None);
        members.connected(0, seen(7, 100, 11), at(0));
        // 60 s and 2 %, less the 10 s for which it ran at least.
        assert!(!counts(&members, 0, 151) && counts(&members, 0, 152));
        let mut members = Members::new(1, SPAN);
        let untold = SeenProcess {
            uptime: None,
            ..seen(7, 100, 0)
        };
        members.connected(0, untold, at(0));
        assert!(!counts(&members, 0, 161) && counts(&members, 0, 162));
    }

    #[test]
    fn known_process_keeps_its_quarantine_whatever_its_clock_says() {
        let mut members = Members::new(1, SPAN);
        members.connected(0, seen(7, 100, 0), at(0));
        members.connected(0, seen(7, 110, 7200), at(105));
        assert!(!counts(&members, 0, 161) && counts(&members, 0, 162));
    }

    #[test]
    fn restart_counts_from_the_last_sign_of_life_of_the_old_process() {
        let mut members = Members::new(1, SPAN);
        members.connected(0, seen(7, 100, 1000), at(0));
        assert!(counts(&members, 0, 200));
        // Its clock was set two hours forward after the restart.
        members.connected(0, seen(8, 230, 7200), at(220));
        assert_eq!(members.run_id(0), Some(8));
        assert!(!counts(&members, 0, 281) && counts(&members, 0, 282));
        // It went away long ago, and restarted just now.
        members.connected(0, seen(9, 1000, 1), at(300));
        assert!(!counts(&members, 0, 1061) && counts(&members, 0, 1062));
        // It was not asked for long, and restarted long ago.
        members.connected(0, seen(10, 2000, 500), at(1100));
        assert!(counts(&members, 0, 2000));
    }

    #[test]
    fn server_without_a_run_id_counts_only_without_a_quarantine() {
        for (span, expected) in [(SPAN, false), (Duration::ZERO, true)] {
            let mut members = Members::new(2, span);
            for member in 0..2 {
                members.connected(member, seen(UNKNOWN_RUN_ID, 100, 1000), at(0));
                assert_eq!(counts(&members, member, 5000), expected);
            }
            assert_eq!(members.standing(1, at(5000)), members.standing(0, at(5000)));
        }
    }

    #[test]
    fn one_server_counts_once() {
        let mut members = Members::new(3, SPAN);
        members.connected(0, seen(7, 100, 1000), at(0));
        members.connected(1, seen(8, 100, 1000), at(0));
        members.connected(2, seen(7, 101, 1000), at(0));
        assert_eq!(members.standing(2, at(900)), Some(Standing::Duplicate(0)));
        assert_eq!(members.run_id(2), None);
        assert!(counts(&members, 0, 900));
        // The name of the first one moves to a third server: the second address may have its place.
        members.connected(0, seen(9, 1000, 5000), at(999));
        members.connected(2, seen(7, 1001, 5000), at(999));
        assert!(!counts(&members, 0, 1060) && counts(&members, 0, 1061));
        assert!(!counts(&members, 2, 1062) && counts(&members, 2, 1063));
    }

    #[test]
    fn name_that_moves_to_another_member_loses_its_vote() {
        let mut members = Members::new(2, Duration::ZERO);
        members.connected(0, seen(7, 100, 1000), at(0));
        members.connected(1, seen(8, 100, 1000), at(0));
        members.connected(1, seen(7, 200, 1000), at(199));
        assert_eq!(members.standing(1, at(300)), Some(Standing::Duplicate(0)));
    }
}
