//! A simulation in the style of FoundationDB: many clients over a network that fails, thousands of
//! virtual seconds in each second.
//!
//! The clients are the production state machines, driven by `virtual_client`, and the server executes
//! each command on the production lock state. Time, network, clocks, processes and faults are
//! simulated in one thread, by one generator of random numbers. So a seed gives exactly one run, and a
//! failing seed repeats it.
//!
//! An episode has a few processes with several tasks each, which share a few locks. Each process has
//! a clock of its own, which is up to 1 % fast or slow, and three connections: for its callers, for
//! its background worker, and for its subscription. The library has one for the last two; apart, they
//! allow more orders. The faults are those of the fault suite, with
//! these differences:
//!
//! - `scripts-flushed` and `subscriber-panics` are missing: the state machines know no scripts, no
//!   threads and no panics.
//! - `misconf` and `no-replicas` are `writes-refused`. `busy-script` is `all-refused`, which is also a
//!   server that loads its data. A state machine sees only the class of an error.
//! - `restart-truncated` is `restart-old`: an earlier state. `evicted` is a part of `key-deleted`.
//! - `foreign-holder` is new: a client of another library takes a free key. `notifications-lost` is
//!   new: a subscription loses what it should deliver, and breaks.
//!
//! The checks are those of `lock-testing`, with the true time as the clock of the history, and
//! those of `watch`, which know the state of the server at each moment.

#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "the method itself is not general enough over the lifetimes of a step"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use lock_testing::{History, Nanos};
use test_support::Random;

use crate::key::{LockKey, LockName};
use crate::tests::virtual_client::Effect;

use self::figures::Figures;
use self::link::{Addressee, Heading, Link, Purpose};
use self::nemesis::{Nemeses, Setup};
use self::process::ClientProcess;
use self::resource::{FencedResource, PendingWrite};
use self::sabotage::Sabotage;
use self::server::{KnownEntry, SimulatedServer};
use self::story::Story;
use self::task::Work;
use self::verdict::FoundViolation;
use self::watch::Watch;

mod clock;
mod connect;
mod driver;
mod figures;
mod link;
mod nemesis;
mod process;
mod record;
mod releasing;
mod resource;
mod run;
mod sabotage;
mod section;
mod server;
mod story;
mod task;
mod tests;
mod timers;
mod verdict;
mod watch;
mod worker;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timed {
    Deliver {
        link: usize,
        heading: Heading,
    },
    Wake {
        process: usize,
        task: usize,
        timer: u32,
    },
    WorkerWake {
        process: usize,
        timer: u32,
    },
    Unsent {
        process: usize,
        addressee: Addressee,
        call: u64,
    },
    Dial {
        process: usize,
        purpose: Purpose,
    },
    DialTimeout {
        link: usize,
    },
    Heartbeat {
        link: usize,
    },
    Write {
        write: usize,
    },
    Written {
        write: usize,
        is_accepted: bool,
    },
    Nemesis {
        lane: usize,
    },
    Cut {
        link: usize,
    },
    Kill {
        process: usize,
    },
    Spawn {
        slot: usize,
    },
    ForeignEnd {
        key: usize,
        number: u64,
    },
}

/// An event in the order of time. Events of the same time have the order in which they were planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Planned {
    at: Nanos,
    number: u64,
    what: Timed,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The setting of one episode.
#[derive(Clone, Debug)]
struct Setting {
    setup: Setup,
    slots: usize,
    tasks: usize,
    locks: usize,
    /// Half of the longest pause of a task between two acquisitions.
    rest: Nanos,
    /// The ttls, in milliseconds.
    ttls: Vec<u64>,
    /// How many of a hundred acquisitions make one attempt.
    tries: usize,
}

impl Setting {
    fn new(random: &mut Random) -> Self {
        let setup = match random.below(10) {
            0..6 => Setup::Durable,
            6..8 => Setup::Forgetful,
            _ => Setup::Clock,
        };
        Self {
            setup,
            slots: 2 + random.below(4),
            tasks: 1 + random.below(6),
            locks: 1 + random.below(4),
            rest: *random.pick(&[50, 500, 2_000, 4_000]) * MS,
            ttls: [
                &[1_000][..],
                &[300, 1_000, 2_500],
                &[100, 5_000],
                &[2_500, 5_000],
            ][random.below(4)]
            .to_vec(),
            tries: *random.pick(&[5, 5, 20, 60]),
        }
    }

    fn longest_ttl(&self) -> Nanos {
        self.ttls.iter().max().copied().unwrap_or(0) * MS
    }
}

/// One episode.
struct Simulation {
    now: Nanos,
    numbers: u64,
    planned: BinaryHeap<Reverse<Planned>>,
    random: Random,
    config: Setting,
    keys: Vec<LockKey>,
    names: Vec<Arc<str>>,
    label: Arc<str>,
    server: SimulatedServer,
    links: Vec<Link>,
    processes: Vec<ClientProcess>,
    /// The process that lives or lived last in each slot.
    slots: Vec<usize>,
    resources: Vec<FencedResource>,
    writes: Vec<PendingWrite>,
    next_call: u64,
    nemesis: Nemeses,
    /// Since when nothing disturbs the server. May be in the future.
    calm_since: Nanos,
    watch: Watch,
    history: History,
    figures: Figures,
    sabotage: Option<Sabotage>,
    story: Option<Story>,
    is_ending: bool,
    /// A cleanup has just failed.
    is_failing: bool,
    /// Used again for each step.
    effects: Vec<Effect>,
    /// The entries of the queue before the last command.
    channels: Vec<KnownEntry>,
}

impl Simulation {
    fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut random = Random::new(seed);
        let config = Setting::new(&mut random);
        let name = |number| format!("k{number}");
        let key =
            |number| LockKey::new("", &LockName::from(name(number))).expect("the name is valid");
        Self {
            now: SECOND,
            numbers: 0,
            planned: BinaryHeap::new(),
            keys: (0..config.locks).map(key).collect(),
            names: (0..config.locks)
                .map(|number| name(number).into())
                .collect(),
            label: "".into(),
            server: SimulatedServer::new(config.locks, 1),
            links: Vec::new(),
            processes: Vec::new(),
            slots: vec![0; config.slots],
            resources: vec![FencedResource::default(); config.locks],
            writes: Vec::new(),
            next_call: 0,
            nemesis: Nemeses::default(),
            calm_since: 0,
            watch: Watch::new(config.locks),
            history: History::new(),
            figures: Figures::default(),
            sabotage,
            story: None,
            is_ending: false,
            is_failing: false,
            effects: Vec::new(),
            channels: Vec::new(),
            random,
            config,
        }
    }

    fn push(&mut self, at: Nanos, what: Timed) {
        self.numbers += 1;
        let number = self.numbers;
        self.planned.push(Reverse(Planned { at, number, what }));
    }

    /// Runs an episode of about this many operations, to its end.
    fn run(&mut self, operations: u64) -> Vec<FoundViolation> {
        let tasks = self.config.tasks;
        for slot in 0..self.config.slots {
            self.spawn(slot, tasks);
        }
        for lane in 0..2 {
            let at = self.now + SECOND + self.random.number() % (5 * SECOND);
            self.push(at, Timed::Nemesis { lane });
        }
        self.run_until(|simulation| simulation.figures.operations >= operations);
        // The callers end what they have begun.
        self.is_ending = true;
        let limit = self.now + 60 * SECOND;
        self.run_until(|simulation| simulation.now >= limit || simulation.is_at_rest());
        for slot in 0..self.slots.len() {
            self.kill(self.slots[slot]);
        }
        self.history.ended = Some(self.now);
        // The longest lease ends, also when the clock was set back.
        self.now += 30 * SECOND;
        self.figures.virtual_ns = u128::from(self.now);
        self.figures.episodes = 1;
        self.judge()
    }

    fn is_at_rest(&self) -> bool {
        self.processes.iter().all(|process| {
            let mut tasks = process.tasks.iter();
            let is_stopped = tasks.all(|task| matches!(task.work, Work::Stopped));
            is_stopped && process.manager.cleanups.is_empty()
        })
    }

    fn run_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        while let Some(Reverse(Planned { at, what, .. })) = self.planned.pop() {
            self.now = at;
            self.figures.events += 1;
            self.happen(what);
            if is_done(self) {
                return;
            }
        }
    }

    /// Returns the process in which an event happens, if it needs one that runs.
    fn process_of(&self, what: Timed) -> Option<usize> {
        match what {
            Timed::Wake { process, .. }
            | Timed::WorkerWake { process, .. }
            | Timed::Unsent { process, .. }
            | Timed::Dial { process, .. } => Some(process),
            Timed::DialTimeout { link } | Timed::Heartbeat { link } => {
                Some(self.links[link].process)
            }
            Timed::Written { write, .. } => Some(self.process_of_write(write)),
            _ => None,
        }
    }

    fn happen(&mut self, what: Timed) {
        if let Some(process) = self.process_of(what) {
            let process = &self.processes[process];
            if !process.is_alive {
                return;
            }
            if process.paused_until > self.now {
                // Timers and connections continue in any order.
                let at = process.paused_until + self.random.number() % (2 * MS);
                return self.push(at, what);
            }
        }
        match what {
            Timed::Deliver { link, heading } => self.deliver(link, heading),
            Timed::Wake {
                process,
                task,
                timer,
            } => self.on_wake(process, task, timer),
            Timed::WorkerWake { process, timer } => self.on_worker_wake(process, timer),
            Timed::Unsent {
                process,
                addressee,
                call,
            } => self.on_unsent(process, addressee, call),
            Timed::Dial { process, purpose } => self.dial(process, purpose),
            Timed::DialTimeout { link } => self.on_dial_timeout(link),
            Timed::Heartbeat { link } => self.on_heartbeat(link),
            Timed::Write { write } => self.on_write(write),
            Timed::Written { write, is_accepted } => self.on_written(write, is_accepted),
            Timed::Nemesis { lane } => self.on_nemesis(lane),
            Timed::Cut { link } => self.cut(link),
            Timed::Kill { process } => self.replace(process),
            Timed::Spawn { slot } => self.spawn(slot, self.config.tasks),
            Timed::ForeignEnd { key, number } => self.end_foreign(key, number),
        }
    }
}
