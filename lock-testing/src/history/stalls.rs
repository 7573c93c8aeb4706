//! The stalls of all processes, for a fast search.

use std::collections::HashMap;

use super::History;
use crate::event::Nanos;

/// Finds out whether a process ran. The stalls of a process are merged and in order.
pub(crate) struct Excuses<'a> {
    history: &'a History,
    stalls: HashMap<u32, Vec<(Nanos, Nanos)>>,
}

impl<'a> Excuses<'a> {
    pub(crate) fn of(history: &'a History) -> Self {
        let mut stalls: HashMap<u32, Vec<(Nanos, Nanos)>> = HashMap::new();
        let mut all: Vec<_> = history.stalls.iter().collect();
        all.sort_by_key(|stall| stall.from);
        for stall in all {
            let merged = stalls.entry(stall.process).or_default();
            match merged.last_mut() {
                Some((_, to)) if stall.from <= *to => *to = stall.to.max(*to),
                _ => merged.push((stall.from, stall.to)),
            }
        }
        Self { history, stalls }
    }

    /// As [`History::stalled`].
    pub(crate) fn stalled(&self, process: u32, from: Nanos, to: Nanos) -> bool {
        let stalls = self.stalls.get(&process).map_or(&[][..], Vec::as_slice);
        let first = stalls.partition_point(|(_, end)| *end <= from);
        stalls.get(first).is_some_and(|(start, _)| *start < to)
            || self.history.died_before(process, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Stall;

    #[test]
    fn fast_search_finds_what_the_slow_search_finds() {
        let mut history = History::new();
        for (process, from, to) in [(1, 5, 9), (1, 7, 12), (2, 0, 3), (1, 20, 21), (1, 8, 10)] {
            history.stalls.push(Stall::new(process, from, to));
        }
        history.deaths.insert(2, 15);
        let excuses = Excuses::of(&history);
        for process in 1..=3 {
            for from in 0..25 {
                for to in from + 1..25 {
                    assert_eq!(
                        excuses.stalled(process, from, to),
                        history.stalled(process, from, to),
                        "process {process} from {from} to {to}"
                    );
                }
            }
        }
    }
}
