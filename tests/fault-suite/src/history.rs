//! The record of one round, merged from all sources.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write as _};
use std::time::Duration;

use lock_core::Dialect;

use crate::event::{Call, Event, Kind, Nanos, Stall, nanos};

/// The number of processes at any time. A new process takes the slot of a killed process.
pub const SLOTS: u32 = 4;

/// The longest ttl that a worker uses, and so the longest time that a dead holder blocks a lock.
pub const LONGEST_TTL: Duration = Duration::from_millis(2_500);

/// Two samples further apart than this prove nothing about the time between them.
pub const SAMPLE_GAP: Duration = Duration::from_millis(250);

/// The note at the beginning of an acquisition that enters the queue.
pub const WAITS: &str = "waits";

/// The note of a call whose future was dropped.
pub const DROPPED: &str = "dropped";

/// Whether the guarantees hold while a fault is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assumption {
    /// All guarantees hold.
    Inside,
    /// The server loses keys, or its clock jumps forward: exclusion is not guaranteed.
    Outside,
}

/// One use of a nemesis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name of the nemesis.
    pub name: String,
    /// A moment before the fault began.
    pub from: Nanos,
    /// A moment after the fault was undone.
    pub to: Nanos,
    /// Whether the guarantees hold meanwhile.
    pub assumption: Assumption,
    /// Whether the fault broke nothing and only caused load.
    pub is_load: bool,
    /// The slots of the processes that the fault disturbed; empty for all.
    pub slots: Vec<u32>,
}

impl Fault {
    /// Returns whether the fault disturbed this process.
    pub fn disturbs(&self, worker: u32) -> bool {
        self.slots.is_empty() || self.slots.contains(&(worker % SLOTS))
    }
}

/// One access to the protected resource, in the resource's own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The moment of the access.
    pub at: Nanos,
    /// The lock that protects it.
    pub key: String,
    /// The worker that accessed it.
    pub worker: u32,
    /// The acquisition of the worker.
    pub hold: u64,
    /// The fencing token, where the lock has one.
    pub token: Option<u64>,
    /// The kind of access.
    pub kind: AccessKind,
}

/// The kinds of access to the protected resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Returned both values to a reader whose token was not too old.
    Read,
    /// Accepted a new value for both registers.
    Write {
        /// The current value of the fenced register.
        fenced: u64,
        /// The current value of the unfenced register.
        unfenced: u64,
    },
    /// Refused a reader.
    StaleRead,
    /// Refused a new fenced value; the unfenced register still accepted it.
    StaleWrite {
        /// The current value of the unfenced register.
        unfenced: u64,
    },
}

/// The state of one lock key in the server at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// A moment before the request was sent.
    pub from: Nanos,
    /// A moment after the reply arrived.
    pub to: Nanos,
    /// The lock.
    pub key: String,
    /// The state of its key.
    pub state: KeyState,
}

/// The state of a lock key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The key did not exist.
    Free,
    /// A lock.
    Held {
        /// The fencing token, where the value has one.
        token: Option<u64>,
    },
    /// A lock without an expiry.
    Unexpiring,
}

/// The record of one round.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The dialect of the clients.
    pub dialect: Dialect,
    /// The events of all processes, in any order until [`History::sort`] is called.
    pub events: Vec<Event>,
    /// The periods in which processes did not run.
    pub stalls: Vec<Stall>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// The accesses to the resource, in its order.
    pub accesses: Vec<Access>,
    /// The samples of the server, in order.
    pub samples: Vec<Sample>,
    /// The moments at which processes were killed.
    pub deaths: BTreeMap<u32, Nanos>,
    /// Processes that did not exit at the end of the round.
    pub hung: Vec<u32>,
    /// Keys that still existed after all clients had ended and the longest lease had expired.
    pub survivors: Vec<String>,
    /// Keys without an expiry that killed holders left, where the dialect cannot prevent it.
    pub unexpiring: Vec<String>,
    /// When the round ended for the processes.
    pub ended: Nanos,
}

/// One granted acquisition, until its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The process.
    pub worker: u32,
    /// Its number within the process.
    pub number: u64,
    /// The lock.
    pub key: String,
    /// The fencing token, where the dialect has tokens.
    pub token: Option<u64>,
    /// When the acquisition began.
    pub requested: Nanos,
    /// When the holder learned that it holds the lock.
    pub ok: Nanos,
    /// The latest time until which the holder certainly believed that the lock was valid.
    pub until: Nanos,
    /// When the holder began to release it.
    pub released: Option<Nanos>,
    /// When and how the release ended.
    pub release_done: Option<(Nanos, Kind)>,
    /// When the loss was reported to its holder.
    pub lost: Option<Nanos>,
    /// Records after the loss that still report the lock as held.
    pub held_after_loss: bool,
}

impl HeldLock {
    /// Returns the end of the period in which the holder believed that the lock was valid.
    pub fn end(&self) -> Nanos {
        self.released
            .map_or(self.until, |released| released.min(self.until))
    }

    /// Returns whether the lock was still valid when the holder received it.
    pub fn was_ever_valid(&self) -> bool {
        self.end() > self.ok
    }
}

impl Display for HeldLock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "w{} ", self.worker)?;
        match self.token {
            Some(token) => write!(f, "(token {token})"),
            None => write!(f, "(hold {})", self.number),
        }
    }
}

/// One call, from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation.
    pub call: Call,
    /// The process.
    pub worker: u32,
    /// The acquisition.
    pub number: u64,
    /// The lock.
    pub key: String,
    /// When it began.
    pub from: Nanos,
    /// When it ended; `None` if its process was killed, or if it was dropped with its task.
    pub to: Option<Nanos>,
    /// How it ended.
    pub kind: Kind,
    /// The limit of its duration.
    pub within: Option<Nanos>,
    /// Whether it enters the queue.
    pub waits: bool,
    /// Whether its future was dropped.
    pub dropped: bool,
}

impl History {
    /// Sorts the events by time.
    pub fn sort(&mut self) {
        self.events.sort_by_key(|event| event.at);
        self.samples.sort_by_key(|sample| sample.from);
    }

    /// Returns all held locks, in the order in which their holders learned of them.
    pub fn held_locks(&self) -> Vec<HeldLock> {
        let mut requested = BTreeMap::new();
        let mut holds: BTreeMap<(u32, u64), HeldLock> = BTreeMap::new();
        for event in &self.events {
            let id = (event.worker, event.hold);
            if event.call == Call::Acquire && event.kind == Kind::Invoke {
                requested.insert(id, event.at);
            }
            if event.call == Call::Acquire && event.kind == Kind::Ok {
                let hold = HeldLock {
                    worker: event.worker,
                    number: event.hold,
                    key: event.key.clone(),
                    token: event.token,
                    requested: requested.get(&id).copied().unwrap_or(event.at),
                    ok: event.at,
                    until: event.until.unwrap_or(event.at),
                    released: None,
                    release_done: None,
                    lost: None,
                    held_after_loss: false,
                };
                holds.insert(id, hold);
                continue;
            }
            let Some(hold) = holds.get_mut(&id) else {
                continue;
            };
            if let Some(until) = event.until {
                hold.until = hold.until.max(until);
                hold.held_after_loss |=
                    until > event.at && hold.lost.is_some_and(|lost| lost < event.at);
            }
            match (event.call, event.kind) {
                (Call::Release, Kind::Invoke) => hold.released = Some(event.at),
                (Call::Release, kind) => hold.release_done = Some((event.at, kind)),
                (Call::Lost, _) => {
                    hold.lost.get_or_insert(event.at);
                }
                _ => {}
            }
        }
        let mut holds: Vec<HeldLock> = holds.into_values().collect();
        holds.sort_by_key(|hold| hold.ok);
        holds
    }

    /// Returns all calls, in the order of their beginnings.
    pub fn operations(&self) -> Vec<Operation> {
        let mut done = Vec::new();
        let mut open: BTreeMap<(u32, u64, Call), Operation> = BTreeMap::new();
        for event in &self.events {
            let id = (event.worker, event.hold, event.call);
            match event.kind {
                Kind::Seen => {}
                Kind::Invoke => {
                    let operation = Operation {
                        call: event.call,
                        worker: event.worker,
                        number: event.hold,
                        key: event.key.clone(),
                        from: event.at,
                        to: None,
                        kind: Kind::Info,
                        within: event.within,
                        waits: event.note.as_deref() == Some(WAITS),
                        dropped: false,
                    };
                    // A call without an end was dropped.
                    done.extend(open.insert(id, operation));
                }
                kind => {
                    if let Some(mut operation) = open.remove(&id) {
                        operation.to = Some(event.at);
                        operation.kind = kind;
                        operation.dropped = event.note.as_deref() == Some(DROPPED);
                        done.push(operation);
                    }
                }
            }
        }
        done.extend(open.into_values());
        done.sort_by_key(|operation| operation.from);
        done
    }

    /// Returns whether this process was stalled or dead for some part of the period.
    pub fn stalled(&self, worker: u32, from: Nanos, to: Nanos) -> bool {
        let state = |stall: &Stall| stall.worker == worker && stall.from < to && from < stall.to;
        self.stalls.iter().any(state) || self.died_before(worker, to)
    }

    /// Returns whether the server answered all samples in this period.
    pub fn answered(&self, from: Nanos, to: Nanos) -> bool {
        let mut last = from;
        for sample in self.samples.iter().filter(|s| s.to > from && s.from < to) {
            if sample.to > last + nanos(SAMPLE_GAP) {
                return false;
            }
            last = sample.to;
        }
        to <= last + nanos(SAMPLE_GAP)
    }

    /// Returns how often a lock was seen without an expiry. Its holder was dead, or had not set the
    /// expiry yet.
    pub fn times_unexpiring(&self) -> usize {
        let mut before: BTreeMap<&str, KeyState> = BTreeMap::new();
        let mut times = 0;
        for sample in &self.samples {
            let last = before.insert(&sample.key, sample.state);
            let begins = sample.state == KeyState::Unexpiring && last != Some(sample.state);
            times += usize::from(begins);
        }
        times
    }

    /// Returns whether this process was killed before this moment.
    pub fn died_before(&self, worker: u32, moment: Nanos) -> bool {
        self.deaths
            .get(&worker)
            .is_some_and(|death| *death <= moment)
    }

    /// Describes for human readers what happened to one lock around a moment, in at most `most`
    /// lines.
    pub fn excerpt(&self, key: &str, from: Nanos, to: Nanos, most: usize) -> String {
        const AROUND: Nanos = 300_000_000;
        let (first, last) = (from.saturating_sub(AROUND), to + AROUND);
        let within = |at: Nanos| (first..=last).contains(&at);
        let since = |at: Nanos| at.cast_signed() - from.cast_signed();
        let mut lines: Vec<(Nanos, String)> = Vec::new();
        for event in self.events.iter().filter(|e| e.key == key && within(e.at)) {
            lines.push((event.at, event.to_line().trim_end().to_owned()));
        }
        for access in self
            .accesses
            .iter()
            .filter(|a| a.key == key && within(a.at))
        {
            let line = format!(
                "resource w{} (hold {}) {:?} {:?}",
                access.worker, access.hold, access.token, access.kind
            );
            lines.push((access.at, line));
        }
        for fault in &self.faults {
            if fault.from <= last && first <= fault.to {
                lines.push((fault.from, format!("FAULT {} begins", fault.name)));
                lines.push((fault.to, format!("FAULT {} is over", fault.name)));
            }
        }
        for stall in &self.stalls {
            if stall.from <= last && first <= stall.to {
                lines.push((stall.from, format!("w{} stands still", stall.worker)));
                lines.push((stall.to, format!("w{} runs again", stall.worker)));
            }
        }
        lines.sort();
        // The lines nearest to the violation are worth most.
        if lines.len() > most {
            let middle = lines.partition_point(|(at, _)| *at < to);
            let begin = middle.saturating_sub(most * 2 / 3).min(lines.len() - most);
            lines = lines.split_off(begin);
            lines.truncate(most);
        }
        let mut text = String::new();
        for (at, line) in lines {
            let micros = since(at) / 1000;
            let _ = writeln!(text, "    {micros:>+10} us  {line}");
        }
        text
    }
}
