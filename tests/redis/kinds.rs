//! Readers, writers and permits on a server: the number of commands, and the keys.

use std::time::Instant;

use lock_core::{Kind, LockManager};
use test_support::fixtures::{NAME, QUEUE, SOON, keys, queue_length};
use test_support::monitor::Command;
use test_support::{RedisServer, eventually_async};
use tests::section_of_a_queue;
use tokio::task::JoinSet;

use super::connect_with;

mod broken_values;
mod downgrade;
mod nested;
mod removed_keys;

/// The holders of [`NAME`] while it is shared.
const HOLDERS: &str = "{lock:job}:h";

const PERMITS: Kind = Kind::Permits { of: 3, weight: 2 };

fn touches_queue(command: &Command) -> bool {
    command.name() == "EVALSHA" && command.words.iter().any(|word| word == QUEUE)
}

/// A waiter of any kind sends one command when it enters the queue and one when it releases. A call lets in a
/// hundred waiters at most, so a longer queue costs some more. On a slow machine, the waiters also poll, 80 times a
/// second if they are a thousand, and the holders renew their leases, which doesn't touch the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_section_of_each_kind_costs_two_commands() {
    let server = RedisServer::start();
    let connect = async || {
        let patient = LockManager::builder().command_timeout(SOON);
        connect_with(patient, &server.url()).await
    };
    let managers = [connect().await, connect().await];
    for locks in &managers {
        section_of_a_queue(locks.lock(NAME)).await;
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
            let started = Instant::now();
            let mut tasks = JoinSet::new();
            for task in 0..waiters {
                let (locks, kind) = (managers[task % 2].clone(), kinds[task / 2 % 2]);
                tasks.spawn(async move {
                    for _ in 0..rounds {
                        section_of_a_queue(locks.lock(NAME).kind(kind)).await;
                    }
                });
            }
            let entries = i64::try_from(waiters).unwrap();
            eventually_async(SOON, async || queue_length(&server) == entries).await;
            first.release().await.unwrap();
            tasks.join_all().await;
            let polls = 80 * usize::try_from(started.elapsed().as_secs()).unwrap();
            let recording = monitor.stop();
            // The first holder acquired before the recording.
            let sent = recording.from_clients().filter(|sent| touches_queue(sent));
            let sent = sent.count() - 1;
            let sections = waiters * rounds;
            let about =
                format!("{kinds:?}, {waiters} waiters: {sent} for {sections}, {polls} polls");
            assert!(sent >= 2 * sections, "{about}");
            assert!(sent * 10 <= 21 * sections + 10 * polls, "{about}");
        }
    }
    assert_eq!(keys(&server), Vec::<String>::new());
}
