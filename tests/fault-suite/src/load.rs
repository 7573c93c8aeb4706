//! The additional load that a nemesis can start in a client process.

use std::fmt::{self, Display, Formatter};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_core::Renew;
use tokio::task::JoinSet;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use crate::worker::TASKS;
use crate::worker::Worker;
use crate::workload::Workload;

/// The locks that a crowd of callers acquires.
pub const CROWD_KEYS: [&str; 8] = [
    "crowd0", "crowd1", "crowd2", "crowd3", "crowd4", "crowd5", "crowd6", "crowd7",
];

/// A guard is held until all guards exist. Nothing renews it, so the server keeps an unreleased
/// lock for this long.
const BURST_TTL: Duration = Duration::from_secs(60);

/// Concurrent acquisitions of a burst.
const BURST_WIDTH: usize = 128;

/// A load that a nemesis can start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// This many guards of as many locks, dropped at the same time.
    Burst(usize),
    /// This many concurrent callers; each acquires one lock for a moment.
    Callers(usize),
    /// Runtimes that are dropped while their tasks lock and unlock, for this many milliseconds.
    Runtimes(u64),
    /// Switches the panics of the process's tracing subscriber on or off.
    Panics(bool),
}

impl Display for Load {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Burst(guards) => write!(f, "burst {guards}"),
            Self::Callers(callers) => write!(f, "callers {callers}"),
            Self::Runtimes(millis) => write!(f, "runtimes {millis}"),
            Self::Panics(on) => write!(f, "panics {}", u8::from(*on)),
        }
    }
}

impl Load {
    /// Parses the line of a load.
    pub fn parse(line: &str) -> Option<Self> {
        let (what, number) = line.split_once(' ')?;
        Some(match what {
            "burst" => Self::Burst(number.parse().ok()?),
            "callers" => Self::Callers(number.parse().ok()?),
            "runtimes" => Self::Runtimes(number.parse().ok()?),
            "panics" => Self::Panics(number == "1"),
            _ => return None,
        })
    }
}

impl Worker {
    /// Runs the load, and returns when it is complete.
    pub(super) async fn run_load(&mut self, load: Load) {
        match load {
            Load::Burst(guards) => self.burst(guards).await,
            Load::Callers(callers) => self.callers(callers).await,
            Load::Runtimes(millis) => {
                let mut worker = self.fork();
                let span = Duration::from_millis(millis);
                let dropped = tokio::task::spawn_blocking(move || worker.drop_runtimes(span));
                dropped.await.expect("no runtime fails to be dropped");
            }
            Load::Panics(on) => PANICS.store(on, Ordering::Relaxed),
        }
    }

    async fn burst(&mut self, count: usize) {
        let mut guards = Vec::with_capacity(count);
        let mut attempts = JoinSet::new();
        let mut names = (0..count).map(|number| format!("burst:{}:{number}", self.config.worker));
        loop {
            while attempts.len() < BURST_WIDTH
                && let Some(name) = names.next()
            {
                let request = self.locks.lock(name).ttl(BURST_TTL).renew(Renew::Never);
                attempts.spawn(async move { request.try_acquire().await });
            }
            match attempts.join_next().await {
                None => break,
                // An acquisition without a reply is cancelled, which is the same load.
                Some(answer) => {
                    guards.extend(
                        answer
                            .expect("an acquisition does not panic")
                            .ok()
                            .flatten(),
                    );
                }
            }
        }
        drop(guards);
    }

    async fn callers(&mut self, count: usize) {
        let mut calls = JoinSet::new();
        for number in 0..count {
            let task = TASKS + u32::try_from(number).expect("there are a few thousand callers");
            let key = *self.random.pick(&CROWD_KEYS);
            let caller = self.task(task, Workload::Storm);
            calls.spawn(caller.call(key));
        }
        while let Some(ended) = calls.join_next().await {
            ended.expect("no call panics");
        }
    }

    fn drop_runtimes(&mut self, span: Duration) {
        let started = Instant::now();
        while started.elapsed() < span && !self.is_stopped() {
            let is_wide = self.random.chance(50);
            let mut builder = if is_wide {
                tokio::runtime::Builder::new_multi_thread()
            } else {
                tokio::runtime::Builder::new_current_thread()
            };
            let runtime = builder.worker_threads(2).enable_all().build();
            let runtime = runtime.expect("the process may have two more threads");
            for number in TASKS..TASKS + 4 {
                let workload = *self.random.pick(&[Workload::Storm, Workload::Cancel]);
                runtime.spawn(self.task(number, workload).run());
            }
            runtime.block_on(tokio::time::sleep(self.random.millis(1, 80)));
            drop(runtime);
        }
    }
}

static PANICS: AtomicBool = AtomicBool::new(false);

/// The panic message of the subscriber. The panic hook skips it, so that it is not printed a
/// thousand times.
const ON_DEMAND: &str = "the subscriber panics on demand";

/// Installs a tracing subscriber for this process that panics when the load switches it on.
pub(super) fn install_panicking_subscriber() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&ON_DEMAND) {
            print(info);
        }
    }));
    tracing::subscriber::set_global_default(PanickingSubscriber)
        .expect("the process has no other subscriber");
}

struct PanickingSubscriber;

impl Subscriber for PanickingSubscriber {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && PANICS.load(Ordering::Relaxed)
    }

    fn event(&self, _: &Event<'_>) {
        panic::panic_any(ON_DEMAND);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
