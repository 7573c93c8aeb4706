//! Readers, writers and permits on a server: the number of commands, and the keys.

use lock_core::{Kind, LockManager};
use test_support::fixtures::{NAME, SOON, keys, queue_length};
use test_support::{RedisServer, eventually_async};
use tokio::task::JoinSet;

use super::connect;

mod broken_values;
mod downgrade;
mod nested;
mod removed_keys;

/// The holders of [`NAME`] while it is shared.
const HOLDERS: &str = "{lock:job}:h";

const PERMITS: Kind = Kind::Permits { of: 3, weight: 2 };

async fn section(locks: &LockManager, kind: Kind) {
    let request = locks.lock(NAME).kind(kind).wait(SOON);
    request.acquire().await.unwrap().release().await.unwrap();
}

/// A waiter of any kind sends one command when it enters the queue and one when it releases. A call lets in a
/// hundred waiters at most, so a longer queue costs some more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_section_of_each_kind_costs_two_commands() {
    let server = RedisServer::start();
    let managers = [connect(&server).await, connect(&server).await];
    for locks in &managers {
        section(locks, Kind::Exclusive).await;
    }
    let of_a_queue = [
        [Kind::Read, Kind::Read],
        [PERMITS, PERMITS],
        [Kind::Read, Kind::Exclusive],
        [Kind::Read, PERMITS],
    ];
    for kinds in of_a_queue {
        for (waiters, rounds) in [(2, 50), (100, 2), (1_000, 1)] {
            let first = managers[0].lock(NAME).acquire().await.unwrap();
            let monitor = server.monitor();
            let mut tasks = JoinSet::new();
            for task in 0..waiters {
                let (locks, kind) = (managers[task % 2].clone(), kinds[task / 2 % 2]);
                tasks.spawn(async move {
                    for _ in 0..rounds {
                        section(&locks, kind).await;
                    }
                });
            }
            let entries = i64::try_from(waiters).unwrap();
            eventually_async(SOON, async || queue_length(&server) == entries).await;
            first.release().await.unwrap();
            tasks.join_all().await;
            let recording = monitor.stop();
            let scripts = recording.from_clients();
            let scripts = scripts
                .filter(|command| command.name() == "EVALSHA")
                .count();
            // The first holder acquired before the recording.
            let (sections, scripts) = (waiters * rounds, scripts - 1);
            let about = format!("{kinds:?}, {waiters} waiters: {scripts} for {sections}");
            assert!(scripts >= 2 * sections, "{about}");
            assert!(scripts * 10 <= 21 * sections, "{about}");
        }
    }
    assert_eq!(keys(&server), Vec::<String>::new());
}
