//! Tasks that take turns with one lock, and the times at which they release and acquire it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use test_support::{Proxy, RedisServer};
use tokio::task::JoinSet;

use crate::raw_handover::RawHandover;
use crate::round_trip::RoundTrip;
use crate::server_info::{CommandStat, scripts};

/// The name of the lock.
pub const NAME: &str = "contended";
/// Longer than a bench, so that no wait ends.
const WAIT: Duration = Duration::from_secs(600);
/// What the proxy adds to a round trip.
const ADDED: Duration = Duration::from_millis(1);

/// Connects managers. Each has received a notification before, so its subscription is up.
///
/// # Panics
///
/// Panics if the server is down.
pub async fn connect(url: &str, managers: usize) -> Vec<LockManager> {
    let mut connected = Vec::new();
    for _ in 0..managers {
        let locks = LockManager::connect(url).await.expect("the server is up");
        let request = locks.lock("first").wait(WAIT);
        let held = request.acquire().await.expect("the server is up");
        held.release().await.expect("the lock was held");
        connected.push(locks);
    }
    connected
}

/// Waits until all releases and cancels of these managers are done. Otherwise the managers would go
/// on during the next measurement, without a server.
pub async fn shut_down(managers: &[LockManager]) {
    for locks in managers {
        while locks.shutdown().await.is_err() {}
    }
}

/// Returns the number of waiters in the queue of a lock.
///
/// # Panics
///
/// Panics if the server is down.
#[must_use]
pub fn queue_length(server: &RedisServer, name: &str) -> usize {
    let queue = format!("{{lock:{name}}}:q");
    let count = server.cli(&["ZCARD", &queue]).integer();
    usize::try_from(count).expect("a count is not negative")
}

/// A server, and the way to it.
pub struct Target {
    /// The server.
    pub server: Arc<RedisServer>,
    /// The URL for the clients.
    pub url: String,
    _proxy: Proxy,
}

/// The ways to a server: `loopback`, and a `proxy` that adds 1 ms to the round trip.
pub const PATHS: [&str; 2] = ["loopback", "proxy"];

impl Target {
    /// Starts a server for clients that connect by one of the [`PATHS`].
    #[must_use]
    pub fn start(path: &str) -> Self {
        let server = Arc::new(RedisServer::start());
        let proxy = Proxy::in_front_of(&server);
        proxy.delay_round_trip(ADDED);
        let url = if path == "proxy" {
            proxy.url()
        } else {
            server.url()
        };
        Self {
            server,
            url,
            _proxy: proxy,
        }
    }
}

/// How long to measure, and how the sections are.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// The number of waiters behind the holder.
    pub waiters: usize,
    /// The sleep within each section, and before each PING.
    pub section: Duration,
    /// The number of blocks of handovers.
    pub blocks: usize,
    /// The handovers of each block, and the PINGs before it.
    pub block: usize,
}

/// One block: handovers, and what was measured just before for comparison.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// From the call of the release until the next holder runs.
    pub handovers: Vec<Duration>,
    /// The paced round trips.
    pub round_trips: Vec<Duration>,
    /// The paced handovers without the library.
    pub raw_handovers: Vec<Duration>,
    /// The scripts that all clients called for the handovers of this block.
    pub cost: CommandStat,
}

struct Log {
    released_at: Option<Instant>,
    blocks: Vec<Block>,
    before_block: CommandStat,
    is_done: bool,
}

struct Shared {
    turns: Turns,
    server: Arc<RedisServer>,
    round_trip: RoundTrip,
    raw_handover: tokio::sync::Mutex<RawHandover>,
    log: Mutex<Log>,
    done: tokio::sync::Notify,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs within a section that began at `now`.
    async fn section(&self, now: Instant) {
        let is_block_full = {
            let mut log = self.log();
            let released_at = log.released_at.take();
            let block = log.blocks.last_mut();
            if let (Some(released_at), Some(block)) = (released_at, block) {
                block.handovers.push(now.duration_since(released_at));
                block.handovers.len() == self.turns.block
            } else {
                true
            }
        };
        if is_block_full {
            self.next_block().await;
        }
        tokio::time::sleep(self.turns.section).await;
    }

    /// Ends a block and begins the next one, if there is one.
    async fn next_block(&self) {
        let Turns {
            section,
            block,
            blocks,
            ..
        } = self.turns;
        // Until then the releaser of the last handover waits again.
        tokio::time::sleep(section).await;
        let now = scripts(&self.server);
        let is_done = {
            let mut log = self.log();
            let before = log.before_block;
            if let Some(ended) = log.blocks.last_mut() {
                ended.cost = now - before;
            }
            log.is_done = log.blocks.len() == blocks;
            log.is_done
        };
        if is_done {
            self.done.notify_one();
            return;
        }
        let mut round_trip = self.round_trip.clone();
        let round_trips = round_trip.measure(block, section).await;
        let mut raw_handover = self.raw_handover.lock().await;
        let raw_handovers = raw_handover.measure(block, section).await;
        let now = scripts(&self.server);
        let mut log = self.log();
        log.before_block = now;
        log.blocks.push(Block {
            handovers: Vec::with_capacity(block),
            round_trips,
            raw_handovers,
            cost: CommandStat::default(),
        });
    }

    async fn repeat(self: Arc<Self>, locks: LockManager) {
        loop {
            let request = locks.lock(NAME).wait(WAIT);
            let guard = request.acquire().await.expect("the wait is long");
            self.section(Instant::now()).await;
            if self.log().is_done {
                // The lock stays locked, so that nothing else happens.
                std::future::pending::<()>().await;
            }
            self.log().released_at = Some(Instant::now());
            guard.release().await.expect("the lock was held");
        }
    }
}

/// Lets tasks take turns on these managers. Each task releases the lock and waits for it again, so
/// the number of waiters stays the same.
///
/// The holder measures round trips within its section, while all others wait.
///
/// # Panics
///
/// Panics if a task gets no lock.
pub async fn take_turns(
    Target { server, url, .. }: &Target,
    managers: &[LockManager],
    turns: Turns,
) -> Vec<Block> {
    let shared = Arc::new(Shared {
        turns,
        server: Arc::clone(server),
        round_trip: RoundTrip::connect(url).await,
        raw_handover: tokio::sync::Mutex::new(RawHandover::connect(url).await),
        log: Mutex::new(Log {
            released_at: None,
            blocks: Vec::new(),
            before_block: CommandStat::default(),
            is_done: false,
        }),
        done: tokio::sync::Notify::new(),
    });
    let first = managers[0].lock(NAME).acquire().await;
    let first = first.expect("the lock is free");
    let mut tasks = JoinSet::new();
    for task in 0..=turns.waiters {
        let locks = managers[task % managers.len()].clone();
        tasks.spawn(Arc::clone(&shared).repeat(locks));
    }
    while queue_length(server, NAME) <= turns.waiters {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.release().await.expect("the lock was held");
    shared.done.notified().await;
    tasks.shutdown().await;
    shut_down(managers).await;
    std::mem::take(&mut shared.log().blocks)
}
