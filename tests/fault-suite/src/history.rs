//! The record of one round, merged from all sources.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_testing::{Access, Nanos, nanos};

use crate::resource::Posting;
use crate::topology::Topology;

/// The number of processes at any time. A new process takes the slot of a killed process.
pub const SLOTS: u32 = 4;

/// The longest ttl that a worker uses, and so the longest time that a dead holder blocks a lock.
pub const LONGEST_TTL: Duration = Duration::from_millis(2_500);

/// Two samples further apart than this prove nothing about the time between them.
pub const SAMPLE_GAP: Duration = Duration::from_millis(250);

/// The note at the beginning of an acquisition that enters the queue.
pub const WAITS: &str = "waits";

/// The beginning of the note of an acquisition that resumes a ticket; the ticket's token follows.
pub const RESUMES: &str = "resumes ";

/// The note about a lock that expired although its holder had just seen that it was not at risk.
pub const UNWARNED: &str = "expired without having been at risk";

/// The note at the beginning of a release that says that the work is done for a [`PERIOD`].
pub const COMPLETES: &str = "completes";

/// For how long the work of a job is done. Not longer than the longest lease, for which a dead holder keeps a key.
pub const PERIOD: Duration = Duration::from_secs(2);

/// Whether the guarantees hold while a fault is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Assumption {
    /// All guarantees hold.
    Inside,
    /// The server loses keys, or its clock jumps forward: exclusion is not guaranteed.
    Outside,
    /// Clients take several primaries for one: neither exclusion nor the order of tokens is guaranteed.
    Divided,
}

impl Assumption {
    /// Returns whether exclusion is guaranteed.
    pub fn excludes(self) -> bool {
        self == Self::Inside
    }
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
    /// Some servers of a quorum had a lock, but no majority had the same one.
    Divided,
}

/// A token that an observer named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When the observer returned it.
    pub at: Nanos,
    /// The number of the process.
    pub worker: u32,
    /// The lock.
    pub key: String,
    /// The holder's token.
    pub token: u64,
}

impl Observation {
    /// Returns the line of a record.
    pub fn line(&self) -> String {
        let Self {
            at,
            worker,
            key,
            token,
        } = self;
        format!("{at} {worker} {key} {token}\n")
    }

    /// Reads a line of a record.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            at: words.next()?.parse().ok()?,
            worker: words.next()?.parse().ok()?,
            key: words.next()?.to_owned(),
            token: words.next()?.parse().ok()?,
        })
    }
}

/// The record of one round: what the clients recorded, and what the suite knows in addition.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The events, stalls, deaths and fenced accesses of the clients.
    pub record: lock_testing::History,
    /// The dialect of the clients.
    pub dialect: Dialect,
    /// How the servers belong together, if there are several.
    pub topology: Option<Topology>,
    /// The accesses to the unfenced counters, in their order.
    pub unfenced: Vec<Access>,
    /// What the observers said, in the order of each process.
    pub observations: Vec<Observation>,
    /// The changes of the balances, in their order.
    pub postings: Vec<Posting>,
    /// The balances at the end.
    pub balances: BTreeMap<String, u64>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// The samples of the server, in order.
    pub samples: Vec<Sample>,
    /// Processes that did not exit at the end of the round.
    pub hung: Vec<u32>,
    /// Keys that still existed after all clients had ended and the longest lease had expired.
    pub survivors: Vec<String>,
    /// Keys without an expiry that killed holders left, where the dialect cannot prevent it.
    pub unexpiring: Vec<String>,
}

impl Deref for History {
    type Target = lock_testing::History;

    fn deref(&self) -> &Self::Target {
        &self.record
    }
}

impl DerefMut for History {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.record
    }
}

impl History {
    /// Sorts the events and samples by time.
    pub fn sort(&mut self) {
        self.record.events.sort_by_key(|event| event.at);
        self.samples.sort_by_key(|sample| sample.from);
    }

    /// Returns whether the server of this lock answered all samples in this period.
    pub fn answered(&self, key: &str, from: Nanos, to: Nanos) -> bool {
        let mut last = from;
        let is_near = |sample: &&Sample| sample.to > from && sample.from < to && sample.key == key;
        for sample in self.samples.iter().filter(is_near) {
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

    /// Describes for human readers what happened to one lock around a period, with the faults.
    pub fn excerpt(&self, key: &str, from: Nanos, to: Nanos, most: usize) -> String {
        let begins = |fault: &Fault| (fault.from, format!("FAULT {} begins", fault.name));
        let ends = |fault: &Fault| (fault.to, format!("FAULT {} is over", fault.name));
        let near = |fault: &&Fault| fault.from <= to + AROUND && from <= fault.to + AROUND;
        let faults = self.faults.iter().filter(near);
        let lines = faults.flat_map(|fault| [begins(fault), ends(fault)]);
        self.record
            .excerpt_with(key, from, to, most, lines.collect())
    }
}

/// Faults that are further away from a violation are not shown with it.
const AROUND: Nanos = 300_000_000;
