//! Two processes of each side on one key.

use std::time::Duration;

use crate::clients::{ClientKind, ClientProcess, Done, GuardedCounter};
use test_support::RedisServer;
use test_support::holds_within;

/// Processes of each side.
const EACH: usize = 2;

/// The least that a side must get, in percent.
const LEAST: u64 = 5;

/// What a race may take besides its sections, on a machine that is busy with something else.
const SLACK: Duration = Duration::from_secs(30);

/// What a section may take. It takes 2 ms without waiters, and some 30 ms where all poll.
const SECTION: Duration = Duration::from_millis(150);

/// What came out of a race.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Sections of the other side.
    pub theirs: u64,
    /// Sections of our side.
    pub ours: u64,
    /// Times that each was refused, theirs and ours, and came back.
    pub refused: [u64; 2],
    /// Sections that the counter does not show.
    pub lost: u64,
}

impl Figures {
    /// What the processes said, against what the counter came to.
    pub fn new(theirs: &[Done], ours: &[Done], count: u64) -> Self {
        let sections = |side: &[Done]| side.iter().map(|done| done.sections).sum::<u64>();
        let refused = |side: &[Done]| side.iter().map(|done| done.refused).sum::<u64>();
        let (their, our) = (sections(theirs), sections(ours));
        Self {
            theirs: their,
            ours: our,
            refused: [refused(theirs), refused(ours)],
            // More than were said is as wrong as fewer.
            lost: (their + our).abs_diff(count),
        }
    }

    /// Sections of both sides.
    pub fn sections(&self) -> u64 {
        self.theirs + self.ours
    }

    /// A side's part of all sections.
    pub fn percent(&self, side: u64) -> u64 {
        side * 100 / self.sections().max(1)
    }

    /// What of it must not be.
    pub fn fault(&self) -> Option<String> {
        if self.lost > 0 {
            return Some(format!("{} updates are lost", self.lost));
        }
        let sides = [("theirs", self.theirs), ("ours", self.ours)];
        sides
            .into_iter()
            .find(|(_, side)| side * 100 < self.sections() * LEAST || *side == 0)
            .map(|(name, side)| {
                let all = self.sections();
                format!("{name} got {side} of {all} sections, less than {LEAST} %")
            })
    }
}

/// Has both sides, theirs and ours, increment the counter that often.
///
/// # Errors
/// What a process did that it must not do, or that it took too long.
pub fn race(
    server: &RedisServer,
    key: &str,
    sides: [&ClientKind; 2],
    sections: u64,
) -> Result<Figures, String> {
    let counter = GuardedCounter::new(server, key);
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
    holds_within(limit, || {
        sum() >= sections || members.iter().any(ClientProcess::has_ended)
    });
    // First whoever left by itself: the others may be waiting for the lock that it took along.
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
    let (theirs, ours) = done.split_at(EACH);
    Ok(Figures::new(theirs, ours, counter.count()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(theirs: u64, ours: u64, count: u64) -> Figures {
        let done = |sections| Done {
            sections,
            refused: 1,
        };
        Figures::new(&[done(theirs)], &[done(ours)], count)
    }

    #[test]
    fn a_lost_update_is_a_fault() {
        let figures = figures(120, 80, 199);
        assert_eq!((figures.lost, figures.refused), (1, [1, 1]));
        assert!(figures.fault().is_some_and(|fault| fault.contains("lost")));
    }

    #[test]
    fn a_side_that_starves_is_a_fault() {
        assert!(
            figures(191, 9, 200)
                .fault()
                .is_some_and(|fault| fault.contains("ours"))
        );
        assert!(figures(0, 0, 0).fault().is_some());
        assert!(figures(10, 190, 200).fault().is_none());
    }
}
