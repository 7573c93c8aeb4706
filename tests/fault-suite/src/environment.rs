//! Everything that takes part in one round: a server, the client processes, a proxy for each, and
//! the resource.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::Dialect;
use lock_testing::Nanos;
use test_support::{Connection, FrozenClock, Proxy, Random, RedisServer, Reply};

use crate::crew::Crew;
use crate::history::{History, LONGEST_TTL, SLOTS};
use crate::leftovers::{ROUNDING, left_behind};
use crate::sampler::Sampler;
use crate::workload::Workload;

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

/// Everything that takes part in a round.
pub struct Environment {
    /// The lock server.
    pub server: RedisServer,
    /// The proxies in front of it, one for each process.
    pub proxies: Vec<Proxy>,
    /// The client processes.
    pub crew: Crew,
    clock: Option<(FrozenClock, AtomicI64)>,
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
        let proxies: Vec<_> = (0..SLOTS).map(|_| Proxy::in_front_of(&server)).collect();
        let urls = proxies.iter().map(Proxy::url).collect();
        Self {
            crew: Crew::start(urls, workload, dialect, worker, random.fork()),
            server,
            proxies,
            clock,
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
            hung: self.crew.end(),
            samples: samples.end(),
            ..History::default()
        };
        let back = self.clock.as_ref().map_or(0, |(_, offset)| {
            // Keys live longer by the amount that the clock was set back.
            offset.load(Ordering::Relaxed).min(0).unsigned_abs()
        });
        thread::sleep(LONGEST_TTL + ROUNDING + Duration::from_micros(back));
        let left = left_behind(&self.server, self.crew.dialect);
        history.survivors = left.survivors;
        history.unexpiring = left.unexpiring;
        self.crew.read_into(&mut history, ended);
        history
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
