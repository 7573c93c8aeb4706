//! Who asks again and again for the lock, and who asks too seldom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::by_hand;
use crate::stage::{Fault, LONG, Server, Shown, ms};

const KEY: &str = "polled";

/// How many do without the 100 ms of sleep between two questions.
const QUICK: usize = 4;
const QUICKLY: Duration = Duration::from_millis(1);
const SLOWLY: Duration = Duration::from_millis(100);

/// What a section takes.
const SECTION: Duration = Duration::from_millis(10);

/// How long each side is watched.
const RUN: Duration = Duration::from_secs(4);

/// What those on the stage have in common.
#[derive(Default)]
struct Stage {
    sections: AtomicU32,
    over: AtomicBool,
}

impl Stage {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    async fn section(&self) {
        sleep(SECTION).await;
        self.sections.fetch_add(1, Ordering::Relaxed);
    }
}

/// The longest wait of the one that is watched.
#[derive(Default)]
struct Longest {
    wait: Duration,
    /// How many sections of others went by meanwhile.
    sections: u32,
    /// Whether it got the lock, before we stopped to watch.
    served: bool,
}

impl Longest {
    fn shown(&self) -> String {
        let waits = if self.served {
            "waits"
        } else {
            "still waits after"
        };
        let (wait, sections) = (ms(self.wait), self.sections);
        format!("{waits} {wait}, while {sections} others go first")
    }
}

/// A client of either kind.
#[derive(Clone)]
enum Client {
    ByHand(MultiplexedConnection),
    Library(LockManager),
}

impl Client {
    /// Gets the lock, works, and releases it; how long it waited, and the sections meanwhile.
    async fn turn(&mut self, stage: &Stage, polls: Duration) -> Result<Longest, Fault> {
        let (begin, before) = (Instant::now(), stage.sections.load(Ordering::Relaxed));
        let waited = |served| Longest {
            served,
            wait: begin.elapsed(),
            sections: stage.sections.load(Ordering::Relaxed) - before,
        };
        match self {
            Self::ByHand(redis) => {
                let owner = format!("{begin:?}");
                while !by_hand::set_nx_px(redis, KEY, &owner, LONG).await? {
                    if stage.is_over() {
                        return Ok(waited(false));
                    }
                    sleep(polls).await;
                }
                let waited = waited(true);
                stage.section().await;
                by_hand::delete_if_mine(redis, KEY, &owner).await?;
                Ok(waited)
            }
            Self::Library(locks) => {
                let guard = locks.lock(KEY).wait(LONG).acquire().await?;
                let waited = waited(true);
                stage.section().await;
                guard.release().await?;
                Ok(waited)
            }
        }
    }
}

/// One client that asks every 100 ms, among some that ask without a pause.
pub async fn starves(server: &Server) -> Result<Shown, Fault> {
    let mut by_hand = Vec::new();
    let mut library = Vec::new();
    for _ in 0..=QUICK {
        by_hand.push(Client::ByHand(server.connect().await?));
        library.push(Client::Library(server.locks().await?));
    }
    Ok(Shown {
        mistake: "polling every 100 ms among clients that poll without a pause",
        by_hand: watch(by_hand).await?.shown(),
        library: watch(library).await?.shown(),
    })
}

/// The first of them is the one that is watched.
async fn watch(clients: Vec<Client>) -> Result<Longest, Fault> {
    let stage = Arc::new(Stage::default());
    let mut tasks = JoinSet::new();
    let mut clients = clients.into_iter();
    let watched = clients.next().ok_or("nobody is watched")?;
    for mut quick in clients {
        let stage = Arc::clone(&stage);
        tasks.spawn(async move {
            while !stage.is_over() {
                quick.turn(&stage, QUICKLY).await?;
            }
            Ok(Longest::default())
        });
    }
    tasks.spawn(watched_turns(watched, Arc::clone(&stage)));
    sleep(RUN).await;
    stage.over.store(true, Ordering::Relaxed);
    let mut longest = Longest::default();
    for turns in tasks.join_all().await {
        let turns: Longest = turns?;
        if turns.wait > longest.wait {
            longest = turns;
        }
    }
    Ok(longest)
}

/// Its longest wait.
async fn watched_turns(mut client: Client, stage: Arc<Stage>) -> Result<Longest, Fault> {
    let mut longest = Longest::default();
    while !stage.is_over() {
        let turn = client.turn(&stage, SLOWLY).await?;
        if turn.wait > longest.wait {
            longest = turn;
        }
        sleep(SLOWLY).await;
    }
    Ok(longest)
}
