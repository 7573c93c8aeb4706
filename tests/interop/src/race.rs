//! Two processes of each side on one key.

use std::time::Duration;

use crate::clients::{ClientKind, ClientProcess, Done, GuardedCounter};
use crate::wakes::WakeCounts;
use test_support::RedisServer;
use test_support::holds_within;

/// The number of processes of each side.
const EACH: usize = 2;

/// The smallest share that a side must get, in percent.
pub const LEAST: u64 = 5;

/// The time that a race may take besides its sections, on a busy machine.
const SLACK: Duration = Duration::from_secs(30);

/// The time that a section may take. It takes 2 ms without waiters, and some 30 ms where all
/// clients poll.
const SECTION: Duration = Duration::from_millis(150);

/// The results of a race.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Sections of the other side.
    pub theirs: u64,
    /// Sections of the lock-core side.
    pub ours: u64,
    /// How often each side was refused and retried, the other side and the lock-core side.
    pub refused: [u64; 2],
    /// Sections that the counter does not show.
    pub lost: u64,
    /// How the waits of the lock-core side ended, if it counts them.
    pub wakes: Option<WakeCounts>,
}

impl Figures {
    /// Compares the reports of the processes with the final counter.
    pub fn new(theirs: &[Done], ours: &[Done], count: u64) -> Self {
        let sections = |side: &[Done]| side.iter().map(|done| done.sections).sum::<u64>();
        let refused = |side: &[Done]| side.iter().map(|done| done.refused).sum::<u64>();
        let (their, our) = (sections(theirs), sections(ours));
        Self {
            theirs: their,
            ours: our,
            refused: [refused(theirs), refused(ours)],
            // A counter that is too high is as wrong as one that is too low.
            lost: (their + our).abs_diff(count),
            wakes: ours
                .iter()
                .filter_map(|done| done.wakes)
                .reduce(WakeCounts::and),
        }
    }

    /// Returns the sections of both sides.
    pub fn sections(&self) -> u64 {
        self.theirs + self.ours
    }

    /// Returns a side's part of all sections.
    pub fn percent(&self, side: u64) -> u64 {
        side * 100 / self.sections().max(1)
    }

    /// Returns the fault in these figures, if there is one. Each side must have got at least this
    /// percentage of the sections.
    pub fn fault(&self, least: u64) -> Option<String> {
        if self.lost > 0 {
            return Some(format!("{} updates are lost", self.lost));
        }
        if let Some(fault) = self.wakes.and_then(|wakes| wakes.fault()) {
            return Some(fault);
        }
        let sides = [("the other client", self.theirs), ("lock-core", self.ours)];
        sides
            .into_iter()
            .find(|(_, side)| side * 100 < self.sections() * least || *side == 0)
            .map(|(name, side)| {
                let all = self.sections();
                format!("{name} got {side} of {all} sections, less than {least} %")
            })
    }
}

/// Lets all sides increment the counter this many times, once each process has begun. The last side is that of
/// lock-core.
///
/// # Errors
/// Fails if a process broke the protocol, or if the race took too long.
pub fn race(
    servers: &[RedisServer],
    key: &str,
    sides: &[&ClientKind],
    sections: u64,
) -> Result<Figures, String> {
    let counter = GuardedCounter::new(servers, key);
    let members: Vec<ClientProcess> = sides
        .iter()
        .flat_map(|side| (1..=EACH).map(|number| counter.start(side, number)))
        .collect();
    for member in &members {
        member.ready()?;
    }
    for member in &members {
        member.go();
    }
    let sum = || members.iter().map(ClientProcess::sections).sum::<u64>();
    let limit = SLACK + SECTION * u32::try_from(sections).unwrap_or(u32::MAX);
    // A process that begins late has had no part in the sections before, which show nothing.
    let mut before = None;
    holds_within(limit, || {
        let sum = sum();
        if before.is_none() && members.iter().all(|member| member.sections() > 0) {
            before = Some(sum);
        }
        let is_over = before.is_some_and(|before| sum - before >= sections);
        is_over || members.iter().any(ClientProcess::has_ended)
    });
    // First a process that ended by itself: the others may be waiting for the lock that it still
    // held.
    for member in members.iter().filter(|member| member.has_ended()) {
        member.done()?;
    }
    for member in &members {
        member.stop();
    }
    let done: Vec<Done> = members
        .iter()
        .map(ClientProcess::done)
        .collect::<Result<_, _>>()?;
    if sum() < sections {
        let got: Vec<String> = members
            .iter()
            .map(|member| format!("{} {}", member.name(), member.sections()))
            .collect();
        let (all, got) = (sum(), got.join(", "));
        return Err(format!(
            "only {all} of {sections} sections before the end of {limit:?}: {got}"
        ));
    }
    let (theirs, ours) = done.split_at(done.len() - EACH);
    Ok(Figures::new(theirs, ours, counter.count()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(theirs: u64, ours: u64, count: u64) -> Figures {
        let done = |sections| Done {
            sections,
            refused: 1,
            wakes: None,
        };
        Figures::new(&[done(theirs)], &[done(ours)], count)
    }

    #[test]
    fn lost_update_is_a_fault() {
        let figures = figures(120, 80, 199);
        assert_eq!((figures.lost, figures.refused), (1, [1, 1]));
        assert!(
            figures
                .fault(LEAST)
                .is_some_and(|fault| fault.contains("lost"))
        );
    }

    #[test]
    fn starving_side_is_a_fault() {
        assert!(
            figures(191, 9, 200)
                .fault(LEAST)
                .is_some_and(|fault| fault.contains("lock-core"))
        );
        assert!(figures(0, 0, 0).fault(LEAST).is_some());
        assert!(figures(10, 190, 200).fault(LEAST).is_none());
    }
    #[test]
    fn share_of_a_pair_may_have_to_be_larger() {
        let figures = figures(150, 50, 200);
        assert!(figures.fault(25).is_none());
        assert!(figures.fault(30).is_some());
    }
}
