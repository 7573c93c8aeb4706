//! The history of a run, merged from all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use crate::event::{Access, Event, Nanos, Stall};
use crate::lines::Line;

mod excerpt;
mod held_lock;
mod stalls;

pub use held_lock::{HeldLock, Operation};
pub(crate) use stalls::Stalls;

/// What happened in a run. It is plain data: fill it by hand, with a [`Recorder`], or from files.
///
/// All times are on one clock. Events and stalls may be in any order. Events with the same time keep
/// their order.
///
/// [`Recorder`]: crate::Recorder
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// The events of all processes.
    pub events: Vec<Event>,
    /// The accesses to the resources, in the order of each resource.
    pub accesses: Vec<Access>,
    /// The periods in which processes did not run.
    pub stalls: Vec<Stall>,
    /// The moments at which processes were killed. A process that was killed later than recorded
    /// here counts as dead in between.
    pub deaths: BTreeMap<u32, Nanos>,
    /// The end of the run; `None` for the time of the last event.
    pub ended: Option<Nanos>,
}

impl History {
    /// Makes an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the end of the run.
    #[must_use]
    pub fn end(&self) -> Nanos {
        let last = || self.events.iter().map(|event| event.at).max();
        self.ended.or_else(last).unwrap_or(0)
    }

    /// Returns whether this process was killed at or before this moment.
    #[must_use]
    pub fn died_before(&self, process: u32, moment: Nanos) -> bool {
        let death = self.deaths.get(&process);
        death.is_some_and(|death| *death <= moment)
    }

    /// Returns whether this process was stalled for some part of the period, or dead at its end.
    #[must_use]
    pub fn stalled(&self, process: u32, from: Nanos, to: Nanos) -> bool {
        let overlaps =
            |stall: &Stall| stall.process == process && stall.from < to && from < stall.to;
        self.stalls.iter().any(overlaps) || self.died_before(process, to)
    }

    /// Adds one line of a record. The end of a process extends the run.
    pub fn add_line(&mut self, line: Line) {
        match line {
            Line::Event(event) => self.events.push(event),
            Line::Access(access) => self.accesses.push(access),
            Line::Stall(stall) => self.stalls.push(stall),
            Line::End { at, .. } => self.ended = self.ended.max(Some(at)),
        }
    }

    /// Adds the history of other processes, whose times are on the same clock.
    ///
    /// The accesses of each of the two histories keep their order, even when their clock was set
    /// back. Their times order them among each other.
    pub fn merge(&mut self, other: Self) {
        self.events.extend(other.events);
        let mut accesses = in_recorded_order(std::mem::take(&mut self.accesses));
        accesses.extend(in_recorded_order(other.accesses));
        accesses.sort_by_key(|(at, _)| *at);
        self.accesses = accesses.into_iter().map(|(_, access)| access).collect();
        self.stalls.extend(other.stalls);
        self.deaths.extend(other.deaths);
        self.ended = self.ended.max(other.ended);
    }

    /// Reads the lines of one record.
    ///
    /// A process without an end line was killed. Its last line counts as its death, and may be
    /// incomplete.
    ///
    /// # Errors
    /// [`InvalidLine`] for a line of another format, except the last one.
    pub fn from_lines(text: &str) -> Result<Self, InvalidLine> {
        let mut history = Self::default();
        let mut last_signs = BTreeMap::new();
        let mut ended = BTreeSet::new();
        let mut lines = text.lines().enumerate().peekable();
        while let Some((index, text)) = lines.next() {
            let Some(line) = Line::parse(text) else {
                if lines.peek().is_none() {
                    break;
                }
                return Err(InvalidLine { number: index + 1 });
            };
            let (process, at) = match &line {
                Line::Event(event) => (event.process, event.at),
                Line::Access(access) => (access.process, access.at),
                Line::Stall(stall) => (stall.process, stall.to),
                Line::End { process, at } => {
                    ended.insert(*process);
                    (*process, *at)
                }
            };
            let last: &mut Nanos = last_signs.entry(process).or_default();
            *last = at.max(*last);
            history.add_line(line);
        }
        last_signs.retain(|process, _| !ended.contains(process));
        history.deaths = last_signs;
        Ok(history)
    }

    /// Reads and merges the records of several processes of one machine.
    ///
    /// # Errors
    /// The error of a file that cannot be read. A line of another format is
    /// [`InvalidData`](io::ErrorKind::InvalidData), with the path and the number of the line.
    pub fn read_files(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> io::Result<Self> {
        let mut all = Self::default();
        for path in paths {
            let path = path.as_ref();
            let invalid = |error: &dyn std::fmt::Display, kind| {
                io::Error::new(kind, format!("{}: {error}", path.display()))
            };
            let text = read_text(path).map_err(|error| invalid(&error, error.kind()))?;
            let history = Self::from_lines(&text)
                .map_err(|error| invalid(&error, io::ErrorKind::InvalidData))?;
            all.merge(history);
        }
        Ok(all)
    }
}

/// Reads a file, without the end of its last line if that is no text: a kill may cut a character.
fn read_text(path: &Path) -> io::Result<String> {
    let mut bytes = fs::read(path)?;
    if let Err(error) = std::str::from_utf8(&bytes) {
        let valid = error.valid_up_to();
        if !bytes[valid..].contains(&b'\n') {
            bytes.truncate(valid);
        }
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns each access with the latest time up to it, which never decreases.
fn in_recorded_order(accesses: Vec<Access>) -> Vec<(Nanos, Access)> {
    let mut latest = 0;
    let with_latest = |access: Access| {
        latest = access.at.max(latest);
        (latest, access)
    };
    accesses.into_iter().map(with_latest).collect()
}

/// A line that is not a line of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number} is not a line of a history; check that a `Recorder` wrote the file")]
#[non_exhaustive]
pub struct InvalidLine {
    /// The number of the line. The first line is 1.
    pub number: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Call, Kind};

    fn line(at: Nanos, process: u32) -> String {
        let event = Event::new(at, process, 1, "k", Call::Acquire, Kind::Invoke);
        Line::Event(event).to_text()
    }

    #[test]
    fn record_without_an_end_is_that_of_a_killed_process() {
        let end = Line::End { process: 2, at: 40 }.to_text();
        let text = format!("{}{}{end}{}", line(10, 1), line(30, 2), line(20, 1));
        let history = History::from_lines(&text[..text.len() - 4]).unwrap();
        assert_eq!(history.deaths, BTreeMap::from([(1, 10)]));
        assert_eq!((history.events.len(), history.end()), (2, 40));
        assert!(history.died_before(1, 10) && !history.died_before(1, 9));
        assert!(!history.died_before(2, 99));
    }

    #[test]
    fn line_of_another_format_is_an_error() {
        let text = format!("{}what\n{}", line(10, 1), line(20, 1));
        let error = History::from_lines(&text).unwrap_err();
        assert_eq!(error.number, 2);
        let missing = History::read_files(["no such file"]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn merge_orders_the_accesses_by_time() {
        use crate::event::AccessKind;
        let with = |at| History {
            accesses: vec![Access::new(at, "k", 1, 1, None, AccessKind::Read)],
            ended: Some(at),
            ..History::default()
        };
        let mut history = with(20);
        history.merge(with(10));
        let times: Vec<Nanos> = history.accesses.iter().map(|access| access.at).collect();
        assert_eq!((times, history.end()), (vec![10, 20], 20));
    }

    #[test]
    fn merge_keeps_the_order_of_a_source_whose_clock_was_set_back() {
        use crate::event::AccessKind;
        let with = |process: u32, times: &[Nanos]| {
            let access = |at| Access::new(at, "k", process, 1, None, AccessKind::Read);
            History {
                accesses: times.iter().copied().map(access).collect(),
                ..History::default()
            }
        };
        let mut history = History::new();
        history.merge(with(1, &[10, 30, 20, 40]));
        history.merge(with(2, &[5, 35, 1]));
        let order = |process| {
            let accesses = history.accesses.iter();
            let own = accesses.filter(move |access| access.process == process);
            own.map(|access| access.at).collect::<Vec<Nanos>>()
        };
        assert_eq!(order(1), [10, 30, 20, 40]);
        assert_eq!(order(2), [5, 35, 1]);
        let times: Vec<Nanos> = history.accesses.iter().map(|access| access.at).collect();
        assert_eq!(times, [5, 10, 30, 20, 35, 1, 40]);
    }
}
