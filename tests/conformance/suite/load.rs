//! Many locks and many tasks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tests::shut_down;
use tokio::task::JoinSet;

use super::subject::{NAME, Subject, WAIT};

/// A thousand names are a thousand locks, and all are held at once.
pub(crate) async fn one_manager_holds_a_thousand_locks(s: &Subject) {
    const COUNT: usize = 1_000;
    let name = |number: usize| format!("item:{number}");
    let mut acquiring = JoinSet::new();
    for number in 0..COUNT {
        // Each request waits, because a busy machine may not run a thousand within the command
        // timeout.
        acquiring.spawn(s.first.lock(name(number)).wait(WAIT).acquire());
    }
    let held: Result<Vec<_>, _> = acquiring.join_all().await.into_iter().collect();
    let mut held = held.unwrap();
    for number in 0..COUNT {
        let tried = s.second.lock(name(number)).try_acquire().await.unwrap();
        assert!(tried.is_none(), "{tried:?}");
    }
    assert!(held.iter().all(|guard| !guard.is_lost()));
    let second_half = held.split_off(COUNT / 2);
    for guard in held {
        guard.release().await.unwrap();
    }
    drop(second_half);
    shut_down(&s.first).await;
    for number in 0..COUNT {
        let free = s.second.lock(name(number)).try_acquire().await.unwrap();
        drop(free.expect("the lock was released"));
    }
    shut_down(&s.second).await;
}

/// The counter is read and written in two steps, so two holders at once would lose an update.
pub(crate) async fn no_update_is_lost(s: &Subject) {
    const TASKS: u64 = 32;
    // A section takes some 200 ms where waiters poll.
    let rounds = if s.notifies { 8 } else { 2 };
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = s
            .manager(usize::try_from(task).expect("the number is small"))
            .clone();
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            for round in 0..rounds {
                let request = locks.lock(NAME).wait(WAIT);
                let increment = async |_: &_| {
                    let read = counter.load(Ordering::Relaxed);
                    if (task + round) % 8 == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    } else {
                        tokio::task::yield_now().await;
                    }
                    counter.store(read + 1, Ordering::Relaxed);
                };
                request.run(increment).await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * rounds);
}
