//! The stalls of all processes, for a fast search.

use std::collections::HashMap;

use super::History;
use crate::event::Nanos;

/// Finds out for how long a process did not run.
pub(crate) struct Stalls {
    /// The stalls of each process, merged and in order.
    processes: HashMap<u32, Vec<(Nanos, Nanos)>>,
}

impl Stalls {
    pub(crate) fn of(history: &History) -> Self {
        let mut processes: HashMap<u32, Vec<(Nanos, Nanos)>> = HashMap::new();
        let mut all: Vec<_> = history.stalls.iter().collect();
        all.sort_by_key(|stall| stall.from);
        for stall in all {
            let merged = processes.entry(stall.process).or_default();
            match merged.last_mut() {
                Some((_, to)) if stall.from <= *to => *to = stall.to.max(*to),
                _ => merged.push((stall.from, stall.to)),
            }
        }
        Self { processes }
    }

    /// Returns for how much of the period the process was stalled: zero for an empty period.
    pub(crate) fn time(&self, process: u32, from: Nanos, to: Nanos) -> Nanos {
        let stalls = self.processes.get(&process).map_or(&[][..], Vec::as_slice);
        let first = stalls.partition_point(|(_, end)| *end <= from);
        let within = stalls[first..].iter().take_while(|(begin, _)| *begin < to);
        within
            .map(|(begin, end)| (*end).min(to).saturating_sub((*begin).max(from)))
            .sum()
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
        let stalls = Stalls::of(&history);
        for process in 1..=3 {
            for from in 0..25 {
                for to in 0..25 {
                    let is_stalled = |at: &Nanos| history.stalled(process, *at, at + 1);
                    let expected = (from..to).filter(is_stalled).count();
                    let found = stalls.time(process, from, to);
                    assert_eq!(
                        usize::try_from(found),
                        Ok(expected),
                        "process {process} from {from} to {to}"
                    );
                }
            }
        }
    }
}
