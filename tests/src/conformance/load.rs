//! Many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{NAME, Subject, WAIT};

/// A thousand names are a thousand locks, held all at once.
pub async fn a_thousand_locks_at_once(s: &Subject) {
    const COUNT: usize = 1_000;
    let name = |number: usize| format!("item:{number}");
    let mut taking = JoinSet::new();
    for number in 0..COUNT {
        taking.spawn(s.first.lock(name(number)).acquire());
    }
    let mut held = Vec::new();
    while let Some(guard) = taking.join_next().await {
        held.push(guard.unwrap().unwrap());
    }
    let mut trying = JoinSet::new();
    for number in 0..COUNT {
        trying.spawn(s.second.lock(name(number)).try_acquire());
    }
    while let Some(tried) = trying.join_next().await {
        let tried = tried.unwrap().unwrap();
        assert!(tried.is_none(), "{tried:?}");
    }
    assert!(held.iter().all(|guard| !guard.is_lost()));
    let mut releasing = JoinSet::new();
    for guard in held {
        releasing.spawn(guard.release());
    }
    while let Some(released) = releasing.join_next().await {
        released.unwrap().unwrap();
    }
    let mut retaking = JoinSet::new();
    for number in 0..COUNT {
        retaking.spawn(s.second.lock(name(number)).acquire());
    }
    while let Some(guard) = retaking.join_next().await {
        drop(guard.unwrap().expect("it was released"));
    }
    s.second.shutdown().await;
}

/// The oracle of them all: a counter that is read and written in two steps.
pub async fn no_update_is_lost(s: &Subject) {
    const TASKS: u64 = 32;
    const ROUNDS: u64 = 8;
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = s.manager(usize::try_from(task).expect("a few")).clone();
        let counter = Arc::clone(&counter);
        tasks.spawn(async move {
            for round in 0..ROUNDS {
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
    assert_eq!(counter.load(Ordering::Relaxed), TASKS * ROUNDS);
}
