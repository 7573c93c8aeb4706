//! A writer that waits among readers that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::by_hand::{POLL, Readers};
use crate::stage::{ActResult, BoxError, LONG, LongestWait, Server};

const KEY: &str = "catalog";

/// Enough that one of them is always reading.
const READERS: u32 = 8;
const READS: Duration = Duration::from_millis(30);
/// The reads of the next reader are longer by this time, so that they do not end together: a moment in which the
/// machine stands still would bring equal reads into step.
const LONGER: Duration = Duration::from_millis(3);

/// The time after which the writer by hand gives up.
const RUN: Duration = Duration::from_secs(2);

/// A client with a read-write lock by hand, or with this library.
enum Client {
    ByHand(Readers),
    Library(LockManager),
}

impl Client {
    async fn read(&mut self, time: Duration) -> Result<(), BoxError> {
        match self {
            Self::ByHand(lock) => {
                while !lock.try_read(KEY).await? {
                    sleep(POLL).await;
                }
                sleep(time).await;
                lock.end_read(KEY).await?;
            }
            Self::Library(locks) => {
                let guard = locks.lock(KEY).read().wait(LONG).acquire().await?;
                sleep(time).await;
                guard.release().await?;
            }
        }
        Ok(())
    }

    /// Acquires the lock for writing. Returns whether it did within the time of the act.
    async fn write(&mut self) -> Result<bool, BoxError> {
        match self {
            Self::ByHand(lock) => {
                let begin = Instant::now();
                while !lock.try_write(KEY).await? {
                    if begin.elapsed() >= RUN {
                        return Ok(false);
                    }
                    sleep(POLL).await;
                }
                lock.end_write(KEY).await?;
            }
            Self::Library(locks) => {
                let guard = locks.lock(KEY).write().wait(LONG).acquire().await?;
                guard.release().await?;
            }
        }
        Ok(true)
    }
}

/// Makes a writer wait among readers that follow each other without a pause.
pub async fn starves(server: &Server) -> Result<ActResult, BoxError> {
    let mut by_hand = Vec::new();
    let mut library = Vec::new();
    for _ in 0..=READERS {
        let redis = server.connect().await?;
        by_hand.push(Client::ByHand(Readers { redis }));
        library.push(Client::Library(server.locks().await?));
    }
    Ok(ActResult {
        mistake: "a writer waits while readers come and go",
        by_hand: measure(by_hand).await?.shown(),
        library: measure(library).await?.shown(),
    })
}

/// Runs the clients. The first of them is the writer.
async fn measure(clients: Vec<Client>) -> Result<LongestWait, BoxError> {
    let over = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicU32::new(0));
    let mut clients = clients.into_iter();
    let mut writer = clients.next().ok_or("there is no client")?;
    let mut readers = JoinSet::new();
    for (mut reader, number) in clients.zip(0..) {
        let (over, reads) = (Arc::clone(&over), Arc::clone(&reads));
        readers.spawn(async move {
            // They take turns, so that their reads overlap.
            sleep(READS * number / READERS).await;
            while !over.load(Ordering::Relaxed) {
                reader.read(READS + LONGER * number).await?;
                reads.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), BoxError>(())
        });
    }
    // All readers are there.
    sleep(2 * READS).await;
    let (begin, before) = (Instant::now(), reads.load(Ordering::Relaxed));
    let served = writer.write().await?;
    let longest = LongestWait {
        wait: begin.elapsed(),
        sections: reads.load(Ordering::Relaxed) - before,
        served,
    };
    over.store(true, Ordering::Relaxed);
    for reader in readers.join_all().await {
        reader?;
    }
    Ok(longest)
}
