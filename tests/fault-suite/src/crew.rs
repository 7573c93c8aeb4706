//! The client processes of a round, the resource that they change, and their records.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lock_core::dialect::Dialect;
use lock_testing::{Access, Line, Nanos};
use test_support::{Helper, Process, Random, Scratch};

use crate::clock::now;
use crate::history::{History, Observation, SLOTS};
use crate::load::Load;
use crate::resource::Resource;
use crate::worker::WorkerConfig;
use crate::workload::Workload;

/// Bound on the start and on the end of the workers. They wait at most 3 s for a lock, and the
/// longest lease is shorter.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Every second process uses this short command timeout; the others use the library's default.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

struct Client {
    number: u32,
    process: Process,
}

/// The client processes, one in each slot.
pub struct Crew {
    /// The URL of each slot.
    urls: Vec<String>,
    /// The environment variables that all processes get in addition to the suite's own.
    variables: Vec<(OsString, OsString)>,
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

impl Crew {
    /// Starts a process for each URL, with these environment variables, and waits until all of them have connected.
    ///
    /// # Panics
    ///
    /// Panics if one of the processes does not start.
    pub fn start(
        (urls, variables): (Vec<String>, Vec<(OsString, OsString)>),
        workload: Workload,
        dialect: Dialect,
        worker: &Path,
        random: Random,
    ) -> Self {
        let crew = Self {
            clients: urls.iter().map(|_| Mutex::new(None)).collect(),
            urls,
            variables,
            resource: Resource::start(),
            records: Scratch::new(),
            next_worker: AtomicU32::new(0),
            deaths: Mutex::default(),
            worker: worker.to_owned(),
            workload,
            dialect,
            seeds: Mutex::new(random),
        };
        for slot in 0..crew.clients.len() {
            crew.spawn(slot);
        }
        for client in &crew.clients {
            let client = locked(client);
            let process = &client
                .as_ref()
                .expect("the client was just started")
                .process;
            process.record(PATIENCE, |record| record.get("ready").is_some());
        }
        crew
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.clients.len()
    }

    /// Starts a process in a free slot.
    pub fn spawn(&self, slot: usize) {
        let place = u32::try_from(slot).expect("there are four slots");
        let life = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let number = life * SLOTS + place;
        let config = WorkerConfig {
            url: self.urls[slot].clone(),
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
        let helper = Helper::new(&self.worker).arg(config.to_argument());
        let variables = self.variables.iter().cloned();
        let helper = variables.fold(helper, |helper, (name, value)| helper.env(name, value));
        let process = helper.spawn();
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

    /// Returns the accesses that the unfenced counters have seen so far.
    pub fn unfenced_accesses(&self) -> Vec<Access> {
        self.resource.unfenced_accesses()
    }

    /// Ends all processes. Returns those that did not end by themselves.
    pub fn end(&self) -> Vec<u32> {
        for client in self.clients.iter().map(locked) {
            if let Some(client) = &*client {
                client.process.close_stdin();
            }
        }
        let started = Instant::now();
        let mut hung = Vec::new();
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
                hung.push(number);
            }
            process.kill9();
        }
        hung
    }

    /// Adds the records of all processes that have ended, and sorts them.
    pub fn read_into(self, history: &mut History, ended: Nanos) {
        history.dialect = self.dialect;
        history.deaths.clone_from(&locked(&self.deaths));
        history.accesses = self.resource.accesses();
        history.postings = self.resource.postings();
        history.balances = self.resource.balances();
        history.unfenced = self.resource.unfenced_accesses();
        for number in 0..self.next_worker.load(Ordering::Relaxed) * SLOTS {
            let text = fs::read_to_string(self.record(number)).unwrap_or_default();
            let observed = self.record(number).with_extension("observed");
            let observed = fs::read_to_string(observed).unwrap_or_default();
            // A kill may leave a partial line.
            let (observed, _partial) = observed.rsplit_once('\n').unwrap_or_default();
            let observed = observed.lines().filter_map(Observation::parse);
            history.observations.extend(observed);
            for line in text.lines().filter_map(Line::parse) {
                history.add_line(line);
            }
        }
        history.ended = Some(ended);
        history.sort();
    }

    fn record(&self, worker: u32) -> PathBuf {
        self.records.path().join(format!("{worker}.jsonl"))
    }
}
