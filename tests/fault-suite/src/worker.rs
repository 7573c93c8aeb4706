//! One client process: tasks that acquire locks, change the resource under them, and record every
//! step.

mod config;
mod election;
mod record;
mod section;
mod shared;
mod task;
mod ticket;
mod transfer;

use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub use config::WorkerConfig;
use lock_core::LockManager;
use lock_testing::Recorder;
use section::Section;
use serde_json::{Value, json};
use task::Task;
use test_support::Random;
use tests::shut_down;
use ticket::Tickets;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::load::{self, Load};
use crate::resource::Client;
use crate::topology::QUARANTINE;
use crate::workload::Workload;

/// The number of tasks of each process.
pub const TASKS: u32 = 8;

/// The locks that all tasks acquire.
pub const SHORT_KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// The locks that are held for many times their ttl.
pub const LONG_KEYS: [&str; 4] = ["long0", "long1", "long2", "long3"];

/// Short, because a dead holder blocks the lock for one ttl.
pub const TTL: Duration = Duration::from_secs(1);

/// The interval between polls of a waiter without notifications.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The interval between lookups of a server that has a name.
const RESOLVE_INTERVAL: Duration = Duration::from_millis(300);

/// Works until stdin is closed, and then shuts down cleanly. Each line from stdin is a [`Load`],
/// which runs in addition to the workload.
///
/// Prints `{"ready":true}` when it has connected, `{"did":".."}` after each load, and
/// `{"done":true}` when all locks are released.
pub fn work(config: &WorkerConfig) {
    load::install_panicking_subscriber();
    let stop = Arc::new(Stop::default());
    let (sender, mut lines) = mpsc::unbounded_channel();
    {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let _leaving = sender.send(line);
            }
            stop.set();
        });
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the process may have two more threads");
    runtime.block_on(async {
        let Some(locks) = connect(config, &stop).await else {
            return;
        };
        let recorder = Recorder::builder(locks.clone()).process(config.worker);
        let recorder = recorder.only_file(&config.record).build();
        let recorder = recorder.expect("the runner created the folder");
        say(&json!({ "ready": true }));
        let mut worker = Worker {
            config: config.clone(),
            locks,
            recorder: recorder.clone(),
            stop,
            random: Random::new(config.seed),
        };
        let mut tasks = JoinSet::new();
        for number in 0..TASKS {
            let workload = config.workload.of_task(number);
            tasks.spawn(worker.task(number, workload).run());
        }
        while let Some(line) = lines.recv().await {
            let load = Load::parse(&line).expect("the runner sends only known loads");
            let mut worker = worker.fork();
            tasks.spawn(async move {
                worker.run_load(load).await;
                say(&json!({ "did": line }));
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no task panics");
        }
        shut_down(&worker.locks).await;
        recorder.finish().expect("the record can be written");
    });
    say(&json!({ "done": true }));
}

fn say(record: &Value) {
    let mut out = io::stdout().lock();
    // A runner that has ended reads nothing, and this process ends with it.
    let _ = writeln!(out, "{record}").and_then(|()| out.flush());
}

/// The stop signal. It wakes all sleeping tasks.
#[derive(Default)]
struct Stop {
    set: AtomicBool,
    notify: Notify,
}

impl Stop {
    fn set(&self) {
        self.set.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    async fn or_after(&self, span: Duration) {
        let notified = self.notify.notified();
        if !self.is_set() {
            let _notified_or_over = tokio::time::timeout(span, notified).await;
        }
    }
}

/// The server may be down at this moment.
async fn connect(config: &WorkerConfig, stop: &Stop) -> Option<LockManager> {
    while !stop.is_set() {
        let builder = LockManager::builder()
            .command_timeout(config.command_timeout)
            .retry_interval(POLL_INTERVAL)
            .resolve_interval(RESOLVE_INTERVAL)
            .quarantine(QUARANTINE)
            .dialect(config.dialect);
        if config.workload == Workload::Outage {
            let made = builder.connect_lazy(&config.url);
            return Some(made.expect("the URL is valid"));
        }
        if let Ok(locks) = builder.connect(&config.url).await {
            return Some(locks);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    None
}

/// The state that all tasks of a process share.
pub(crate) struct Worker {
    pub(crate) config: WorkerConfig,
    pub(crate) locks: LockManager,
    recorder: Recorder,
    stop: Arc<Stop>,
    pub(crate) random: Random,
}

impl Worker {
    /// Returns a copy with its own random generator.
    pub(crate) fn fork(&mut self) -> Self {
        Self {
            config: self.config.clone(),
            locks: self.locks.clone(),
            recorder: self.recorder.clone(),
            stop: Arc::clone(&self.stop),
            random: self.random.fork(),
        }
    }

    pub(crate) fn task(&mut self, number: u32, workload: Workload) -> Task {
        Task {
            locks: self.locks.clone(),
            command_timeout: self.config.command_timeout,
            dialect: self.config.dialect,
            workload,
            section: Section::Update,
            recorder: self.recorder.for_task(number),
            stop: Arc::clone(&self.stop),
            random: self.random.fork(),
            resource: Client::new(self.config.resource, self.config.worker),
            worker: self.config.worker,
            record: self.config.record.clone(),
            tickets: Tickets::beside(&self.config.record),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}
