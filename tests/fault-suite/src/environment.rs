//! Everything that takes part in one round: a server, the client processes, a proxy for each, and
//! the resource.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lock_core::Dialect;
use lock_testing::{Access, Line, Nanos};
use test_support::{
    Connection, FrozenClock, Helper, Process, Proxy, Random, RedisServer, Reply, Scratch,
};

use crate::clock::now;
use crate::history::{History, LONGEST_TTL, SLOTS};
use crate::leftovers::{ROUNDING, left_behind};
use crate::load::Load;
use crate::resource::Resource;
use crate::sampler::Sampler;
use crate::worker::WorkerConfig;
use crate::workload::Workload;

/// Bound on the start and on the end of the workers. They wait at most 3 s for a lock, and the
/// longest lease is shorter.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers later than this counts as faulty.
pub(crate) const ADMIN_PATIENCE: Duration = Duration::from_secs(2);

/// How the server keeps its data and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerSetup {
    /// Every write is on disk before the server replies, so that a restart loses nothing.
    Durable,
    /// As durable as above, but the nemeses delete data.
    Forgetful,
    /// Nothing on disk, and the nemesis controls the wall clock.
    Clock,
}

/// Every second process uses this short command timeout; the others use the library's default.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

struct Client {
    number: u32,
    process: Process,
}

/// Everything that takes part in a round.
pub struct Environment {
    /// The lock server.
    pub server: RedisServer,
    /// The proxies in front of it, one for each process.
    pub proxies: Vec<Proxy>,
    clock: Option<(FrozenClock, AtomicI64)>,
    resource: Resource,
    records: Scratch,
    clients: Vec<Mutex<Option<Client>>>,
    next_worker: AtomicU32,
    deaths: Mutex<BTreeMap<u32, Nanos>>,
    worker: PathBuf,
    workload: Workload,
    /// The dialect of the clients.
    pub dialect: Dialect,
    seeds: Mutex<Random>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Environment {
    /// Starts everything, and waits until all processes have connected.
    ///
    /// # Panics
    ///
    /// Panics if one of the processes does not start.
    pub fn start(
        setup: ServerSetup,
        workload: Workload,
        dialect: Dialect,
        worker: &Path,
        mut random: Random,
    ) -> Self {
        let mut options = RedisServer::options();
        let clock = if setup == ServerSetup::Clock {
            let time = SystemTime::now().duration_since(UNIX_EPOCH);
            let time = time.expect("the clock is set").as_micros();
            let clock = FrozenClock::at(u64::try_from(time).expect("the time fits in 64 bits"));
            clock.run_ahead_by(0);
            options = options.clock(&clock);
            Some((clock, AtomicI64::new(0)))
        } else {
            options = options.args(["--appendonly", "yes", "--appendfsync", "always"]);
            None
        };
        let server = options.start();
        let proxies = (0..SLOTS).map(|_| Proxy::in_front_of(&server)).collect();
        let environment = Self {
            server,
            proxies,
            clock,
            resource: Resource::start(),
            records: Scratch::new(),
            clients: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
            next_worker: AtomicU32::new(0),
            deaths: Mutex::default(),
            worker: worker.to_owned(),
            workload,
            dialect,
            seeds: Mutex::new(random.fork()),
        };
        for slot in 0..environment.clients.len() {
            environment.spawn(slot);
        }
        for client in &environment.clients {
            let client = locked(client);
            let process = &client
                .as_ref()
                .expect("the client was just started")
                .process;
            process.record(PATIENCE, |record| record.get("ready").is_some());
        }
        environment
    }

    /// Starts a process in a free slot.
    pub fn spawn(&self, slot: usize) {
        let place = u32::try_from(slot).expect("there are four slots");
        let life = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let number = life * SLOTS + place;
        let config = WorkerConfig {
            url: self.proxies[slot].url(),
            resource: self.resource.address(),
            record: self.record(number),
            worker: number,
            seed: locked(&self.seeds).number(),
            workload: self.workload,
            command_timeout: if slot.is_multiple_of(2) {
                SHORT_TIMEOUT
            } else {
                DEFAULT_TIMEOUT
            },
            dialect: self.dialect,
        };
        let process = Helper::new(&self.worker).arg(config.to_argument()).spawn();
        *locked(&self.clients[slot]) = Some(Client { number, process });
    }

    /// Kills the process in this slot.
    pub fn kill(&self, slot: usize) {
        if let Some(client) = locked(&self.clients[slot]).take() {
            // Recorded before the kill: the process may not have acted on any belief after this
            // moment.
            locked(&self.deaths).insert(client.number, now());
            client.process.kill9();
        }
    }

    /// Freezes the process in this slot.
    pub fn stop(&self, slot: usize) {
        if let Some(client) = &*locked(&self.clients[slot]) {
            client.process.stop();
        }
    }

    /// Sends an additional load to the process in this slot.
    pub fn start_load(&self, slot: usize, load: Load) {
        if let Some(client) = &*locked(&self.clients[slot]) {
            client.process.send_line(&load.to_string());
        }
    }

    /// Returns how many loads the process in this slot has completed.
    pub fn loads_done(&self, slot: usize) -> usize {
        let client = locked(&self.clients[slot]);
        let lines = client.as_ref().map(|client| client.process.lines());
        let lines = lines.into_iter().flatten();
        lines.filter(|line| line.contains("did")).count()
    }

    /// Lets the process continue.
    pub fn cont(&self, slot: usize) {
        if let Some(client) = &*locked(&self.clients[slot]) {
            client.process.cont();
        }
    }

    /// Moves the server's wall clock by this many milliseconds, relative to its current time.
    ///
    /// # Panics
    ///
    /// Panics if the server uses the machine's clock.
    pub fn move_clock(&self, by_ms: i64) {
        let (clock, offset) = self.clock.as_ref().expect("the setup has a clock");
        let before = offset.fetch_add(by_ms * 1000, Ordering::Relaxed);
        clock.run_ahead_by(before + by_ms * 1000);
    }

    /// Returns the accesses that the unfenced counters have seen so far.
    pub fn unfenced_accesses(&self) -> Vec<Access> {
        self.resource.unfenced_accesses()
    }

    /// Opens a connection that bypasses the proxies. Returns `None` while the server is down or
    /// does not reply.
    pub fn admin(&self) -> Option<Admin> {
        let connection = self.server.connect().ok()?;
        connection.set_patience(ADMIN_PATIENCE).ok()?;
        Some(Admin(connection))
    }

    /// Ends all processes, waits until the longest lease has expired, and builds the record.
    pub fn finish(self, samples: Sampler, ended: Nanos) -> History {
        let mut history = History {
            dialect: self.dialect,
            ..History::default()
        };
        for client in self.clients.iter().map(locked) {
            if let Some(client) = &*client {
                client.process.close_stdin();
            }
        }
        let started = Instant::now();
        for client in &self.clients {
            let client = locked(client).take();
            let Some(Client { number, process }) = client else {
                continue;
            };
            let is_done = || process.lines().iter().any(|line| line.contains("done"));
            while !is_done() && started.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
            if !is_done() {
                history.hung.push(number);
            }
            process.kill9();
        }
        history.samples = samples.end();
        let back = self.clock.as_ref().map_or(0, |(_, offset)| {
            // Keys live longer by the amount that the clock was set back.
            offset.load(Ordering::Relaxed).min(0).unsigned_abs()
        });
        thread::sleep(LONGEST_TTL + ROUNDING + Duration::from_micros(back));
        let left = left_behind(&self.server, self.dialect);
        history.survivors = left.survivors;
        history.unexpiring = left.unexpiring;
        history.deaths.clone_from(&locked(&self.deaths));
        history.accesses = self.resource.accesses();
        history.unfenced = self.resource.unfenced_accesses();
        for number in 0..self.next_worker.load(Ordering::Relaxed) * SLOTS {
            let text = fs::read_to_string(self.record(number)).unwrap_or_default();
            // A kill may leave a partial line.
            for line in text.lines().filter_map(Line::parse) {
                history.add_line(line);
            }
        }
        history.ended = Some(ended);
        history.sort();
        history
    }

    fn record(&self, worker: u32) -> PathBuf {
        self.records.path().join(format!("{worker}.jsonl"))
    }
}

/// A connection of the nemesis and of the sampler.
pub struct Admin(Connection);

impl Admin {
    /// Sends a command. Returns `None` if no reply came; an error reply is a reply.
    pub fn call(&mut self, words: &[&str]) -> Option<Reply> {
        self.0.call(words).ok()
    }

    /// Sends a command and does not wait for its reply.
    pub fn send(&mut self, words: &[&str]) {
        let _ = self.0.send(words);
    }
}
