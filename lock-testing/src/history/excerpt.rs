//! A part of a history, for people.

use std::fmt::Write as _;

use super::History;
use crate::event::Nanos;

/// How much of the time before and after a violation an excerpt shows.
const AROUND: Nanos = 300_000_000;

impl History {
    /// Describes what happened to one lock around a period, in at most `most` lines. Times are in
    /// microseconds since the beginning of the period.
    #[must_use]
    pub fn excerpt(&self, key: &str, from: Nanos, to: Nanos, most: usize) -> String {
        self.excerpt_with(key, from, to, most, Vec::new())
    }

    /// As [`excerpt`](Self::excerpt), with further lines at their times.
    #[must_use]
    pub fn excerpt_with(
        &self,
        key: &str,
        from: Nanos,
        to: Nanos,
        most: usize,
        further: Vec<(Nanos, String)>,
    ) -> String {
        let (first, last) = (from.saturating_sub(AROUND), to.saturating_add(AROUND));
        let within = |at: Nanos| (first..=last).contains(&at);
        let mut lines = further;
        let events = self.events_in_order().into_iter();
        let shown = events.filter(|event| &*event.key == key && within(event.at));
        lines.extend(shown.map(|event| (event.at, event.to_string())));
        let accesses = self.accesses.iter();
        let shown = accesses.filter(|access| &*access.key == key && within(access.at));
        lines.extend(shown.map(|access| (access.at, access.to_string())));
        for stall in &self.stalls {
            if stall.from <= last && first <= stall.to {
                let process = stall.process;
                lines.push((stall.from, format!("process {process} is stalled")));
                lines.push((stall.to, format!("process {process} runs again")));
            }
        }
        for (process, at) in self.deaths.iter().filter(|(_, at)| within(**at)) {
            lines.push((*at, format!("process {process} was killed")));
        }
        lines.sort_by_key(|(at, _)| *at);
        // The lines nearest to the violation are worth most.
        if lines.len() > most {
            let middle = lines.partition_point(|(at, _)| *at < to);
            let begin = middle.saturating_sub(most * 2 / 3).min(lines.len() - most);
            lines = lines.split_off(begin);
            lines.truncate(most);
        }
        let mut text = String::new();
        for (at, line) in lines {
            let micros = (i128::from(at) - i128::from(from)) / 1000;
            let _ = writeln!(text, "    {micros:>+10} us  {line}");
        }
        text
    }
}
