//! One round's record, put together.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter, Write as _};
use std::time::Duration;

use lock_core::Dialect;

use crate::event::{Call, Event, Kind, Nanos, Stall, nanos};

/// How many processes there are at any time; a respawned one keeps the place of the killed one.
pub const SLOTS: u32 = 4;

/// The longest lease that a worker asks for: what a dead holder can cost.
pub const LONGEST_TTL: Duration = Duration::from_millis(2_500);

/// Samples of the server further apart than this say nothing about the time between them.
pub const SAMPLE_GAP: Duration = Duration::from_millis(250);

/// The note of an acquisition that stands in the queue, as it begins.
pub const WAITS: &str = "waits";

/// The note of a call whose future was dropped.
pub const DROPPED: &str = "dropped";

/// Whether what is promised holds while a fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assumption {
    /// Everything is promised.
    Inside,
    /// The server loses keys, or its clock jumps forward: exclusion is not promised.
    Outside,
}

/// One use of a nemesis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub name: String,
    /// Before it began.
    pub from: Nanos,
    /// After it was undone.
    pub to: Nanos,
    /// Whether the promises hold meanwhile.
    pub assumption: Assumption,
    /// Whether it broke nothing, and only asked for much.
    pub is_load: bool,
    /// The places of the processes that it disturbed; empty for all.
    pub slots: Vec<u32>,
}

impl Fault {
    /// Whether it disturbed that process.
    pub fn disturbs(&self, worker: u32) -> bool {
        self.slots.is_empty() || self.slots.contains(&(worker % SLOTS))
    }
}

/// What the protected resource was asked for, in its own order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// When.
    pub at: Nanos,
    /// The lock that protects it.
    pub key: String,
    /// The worker that accessed it.
    pub worker: u32,
    /// Under which of its acquisitions.
    pub hold: u64,
    /// With which token, where the lock has one.
    pub token: Option<u64>,
    /// What.
    pub kind: AccessKind,
}

/// What the protected resource did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Returned both values to a reader whose token was not too old.
    Read,
    /// Took a new value, and a new unfenced one.
    Write {
        /// What stands in the fenced register now.
        fenced: u64,
        /// What stands in the unfenced register now.
        unfenced: u64,
    },
    /// Refused a reader.
    StaleRead,
    /// Refused a new value; the unfenced register took it all the same.
    StaleWrite {
        /// What stands in the unfenced register now.
        unfenced: u64,
    },
}

/// What stood in the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Before the server was asked.
    pub from: Nanos,
    /// After it answered.
    pub to: Nanos,
    /// The lock.
    pub key: String,
    /// What its key had.
    pub state: KeyState,
}

/// What stood in a lock key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// There was no such key.
    Free,
    /// A lock.
    Held {
        /// Its token, where the value has one.
        token: Option<u64>,
    },
    /// A lock that never ends by itself.
    Unexpiring,
}

/// The record of one round.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// What the clients spoke.
    pub dialect: Dialect,
    /// Of all processes; in any order until [`History::sort`].
    pub events: Vec<Event>,
    /// When processes did not run.
    pub stalls: Vec<Stall>,
    /// What broke.
    pub faults: Vec<Fault>,
    /// What the resource saw, in its order.
    pub accesses: Vec<Access>,
    /// What the server held, in order.
    pub samples: Vec<Sample>,
    /// When processes were killed.
    pub deaths: BTreeMap<u32, Nanos>,
    /// Processes that did not end at the end of the round.
    pub hung: Vec<u32>,
    /// Keys that were still there after everybody had left and the longest lease was over.
    pub survivors: Vec<String>,
    /// Keys without an expiry that killed holders left, where the dialect cannot help it.
    pub unexpiring: Vec<String>,
    /// When the round ended for the processes.
    pub ended: Nanos,
}

/// One acquisition that was granted, until it was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// Which process.
    pub worker: u32,
    /// Its number there.
    pub number: u64,
    /// The lock.
    pub key: String,
    /// Its token, where the dialect has them.
    pub token: Option<u64>,
    /// When it was asked for.
    pub asked: Nanos,
    /// When its holder knew that it was held.
    pub ok: Nanos,
    /// Until when its holder certainly took it to be valid, as far as is known.
    pub until: Nanos,
    /// When its holder began to give it up.
    pub released: Option<Nanos>,
    /// When and how that ended.
    pub release_done: Option<(Nanos, Kind)>,
    /// When the loss was reported to its holder.
    pub lost: Option<Nanos>,
    /// Looks after the loss that said that it is held.
    pub held_after_loss: bool,
}

impl HeldLock {
    /// The end of the time in which the holder took it to be valid.
    pub fn end(&self) -> Nanos {
        self.released
            .map_or(self.until, |released| released.min(self.until))
    }

    /// Whether it was valid when its holder had it.
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
    /// What.
    pub call: Call,
    /// Which process.
    pub worker: u32,
    /// Its acquisition.
    pub number: u64,
    /// The lock.
    pub key: String,
    /// When it began.
    pub from: Nanos,
    /// When it ended; `None` when its process was killed, or it was dropped with its task.
    pub to: Option<Nanos>,
    /// How it ended.
    pub kind: Kind,
    /// How long it might take.
    pub within: Option<Nanos>,
    /// Whether it stands in the queue.
    pub waits: bool,
    /// Whether its future was dropped.
    pub dropped: bool,
}

impl History {
    /// Puts the events in the order of their times.
    pub fn sort(&mut self) {
        self.events.sort_by_key(|event| event.at);
        self.samples.sort_by_key(|sample| sample.from);
    }

    /// All holds, in the order in which their holders knew of them.
    pub fn held_locks(&self) -> Vec<HeldLock> {
        let mut asked = BTreeMap::new();
        let mut holds: BTreeMap<(u32, u64), HeldLock> = BTreeMap::new();
        for event in &self.events {
            let id = (event.worker, event.hold);
            if event.call == Call::Acquire && event.kind == Kind::Invoke {
                asked.insert(id, event.at);
            }
            if event.call == Call::Acquire && event.kind == Kind::Ok {
                let hold = HeldLock {
                    worker: event.worker,
                    number: event.hold,
                    key: event.key.clone(),
                    token: event.token,
                    asked: asked.get(&id).copied().unwrap_or(event.at),
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

    /// All calls, in the order of their beginnings.
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
                    // One whose end is missing was dropped.
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

    /// Whether that process stood still for some of that time, or was dead.
    pub fn stalled(&self, worker: u32, from: Nanos, to: Nanos) -> bool {
        let state = |stall: &Stall| stall.worker == worker && stall.from < to && from < stall.to;
        self.stalls.iter().any(state) || self.died_before(worker, to)
    }

    /// Whether the server was asked what it holds, and answered, all that time.
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

    /// How often a lock was seen without an expiry: its holder was dead, or had not come to it yet.
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

    /// Whether that process was killed before that moment.
    pub fn died_before(&self, worker: u32, moment: Nanos) -> bool {
        self.deaths
            .get(&worker)
            .is_some_and(|death| *death <= moment)
    }

    /// What happened to one lock around a moment, for people: at most so many lines.
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
        // What is nearest to the moments in question is worth most.
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
