//! Clients that poll without a pause, and a client that polls too rarely.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::by_hand;
use crate::stage::{ActResult, BoxError, LONG, LongestWait, Server};

const KEY: &str = "polled";

/// The number of clients that poll without a pause.
const QUICK: usize = 4;
const QUICKLY: Duration = Duration::from_millis(1);
const SLOWLY: Duration = Duration::from_millis(100);

/// The length of a section.
const SECTION: Duration = Duration::from_millis(10);

/// The time for which each side is measured.
const RUN: Duration = Duration::from_secs(4);

/// State that all clients share.
#[derive(Default)]
struct Shared {
    sections: AtomicU32,
    over: AtomicBool,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn section(&self) {
        sleep(SECTION).await;
        self.sections.fetch_add(1, Ordering::Relaxed);
    }
}

/// A client with a lock by hand, or with this library.
#[derive(Clone)]
enum Client {
    ByHand(MultiplexedConnection),
    Library(LockManager),
}

impl Client {
    /// Acquires the lock, works, and releases it. Returns the wait, and the sections during the wait.
    async fn turn(&mut self, shared: &Shared, polls: Duration) -> Result<LongestWait, BoxError> {
        let (begin, before) = (Instant::now(), shared.sections.load(Ordering::Relaxed));
        let waited = |served| LongestWait {
            served,
            wait: begin.elapsed(),
            sections: shared.sections.load(Ordering::Relaxed) - before,
        };
        match self {
            Self::ByHand(redis) => {
                let owner = format!("{begin:?}");
                while !by_hand::set_nx_px(redis, KEY, &owner, LONG).await? {
                    if shared.is_over() {
                        return Ok(waited(false));
                    }
                    sleep(polls).await;
                }
                let waited = waited(true);
                shared.section().await;
                by_hand::delete_if_mine(redis, KEY, &owner).await?;
                Ok(waited)
            }
            Self::Library(locks) => {
                let guard = locks.lock(KEY).wait(LONG).acquire().await?;
                let waited = waited(true);
                shared.section().await;
                guard.release().await?;
                Ok(waited)
            }
        }
    }
}

/// Runs one client that polls every 100 ms, among clients that poll without a pause.
pub async fn starves(server: &Server) -> Result<ActResult, BoxError> {
    let mut by_hand = Vec::new();
    let mut library = Vec::new();
    for _ in 0..=QUICK {
        by_hand.push(Client::ByHand(server.connect().await?));
        library.push(Client::Library(server.locks().await?));
    }
    Ok(ActResult {
        mistake: "polling every 100 ms among clients that poll without a pause",
        by_hand: measure(by_hand).await?.shown(),
        library: measure(library).await?.shown(),
    })
}

/// Runs the clients, and measures the first of them.
async fn measure(clients: Vec<Client>) -> Result<LongestWait, BoxError> {
    let shared = Arc::new(Shared::default());
    let mut tasks = JoinSet::new();
    let mut clients = clients.into_iter();
    let measured = clients.next().ok_or("there is no client")?;
    for mut quick in clients {
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            while !shared.is_over() {
                quick.turn(&shared, QUICKLY).await?;
            }
            Ok(LongestWait::default())
        });
    }
    tasks.spawn(measured_turns(measured, Arc::clone(&shared)));
    sleep(RUN).await;
    shared.over.store(true, Ordering::Relaxed);
    let mut longest = LongestWait::default();
    for turns in tasks.join_all().await {
        let turns: LongestWait = turns?;
        if turns.wait > longest.wait {
            longest = turns;
        }
    }
    Ok(longest)
}

/// Runs the measured client, and returns its longest wait.
async fn measured_turns(mut client: Client, shared: Arc<Shared>) -> Result<LongestWait, BoxError> {
    let mut longest = LongestWait::default();
    while !shared.is_over() {
        let turn = client.turn(&shared, SLOWLY).await?;
        if turn.wait > longest.wait {
            longest = turn;
        }
        sleep(SLOWLY).await;
    }
    Ok(longest)
}
