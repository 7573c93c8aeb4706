//! Every public future is dropped after every number of polls, and nothing stays behind.
//!
//! The ttl is long against the time that each round is given, so a key that only its expiry
//! takes away is seen.

use std::time::Duration;

use lock_core::{LockManager, distributed_lock};
use test_support::{RedisServer, cut, eventually_async};
use tests::shut_down;

const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);
/// What was dropped is taken back at once, and once more when no copy can come back to life.
const SOON: Duration = Duration::from_secs(5);
/// No future here is polled more often before it is done.
const MANY: usize = 60;

struct Place {
    server: RedisServer,
    locks: LockManager,
}

impl Place {
    async fn new() -> Self {
        let server = RedisServer::start();
        let locks = LockManager::builder()
            .default_ttl(TTL)
            .connect(&server.url())
            .await
            .unwrap();
        Self { server, locks }
    }

    fn exists(&self, key: &str) -> bool {
        self.server.cli(&["EXISTS", key]).integer() == 1
    }

    /// Neither the lock nor a place in its queue is left.
    async fn is_clean(&self, what: &str, polls: usize) {
        let clean = async || !self.exists("lock:a") && !self.exists("{lock:a}:q");
        let waiting = tokio::time::timeout(SOON, eventually_async(SOON, clean));
        assert!(
            waiting.await.is_ok(),
            "{what} dropped after {polls} polls left a key"
        );
    }
}

/// Runs `round` with more and more polls until its future is done before it is cut.
async fn at_every_poll(what: &str, place: &Place, mut round: impl AsyncFnMut(usize) -> bool) {
    for polls in 0..MANY {
        let done = round(polls).await;
        place.is_clean(what, polls).await;
        if done {
            assert!(polls > 0, "{what} was never cut");
            // Once all is settled, nothing can come back to life.
            shut_down(&place.locks).await;
            place.is_clean(what, polls).await;
            return;
        }
    }
    panic!("{what} is still not done after {MANY} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquiring_a_free_lock() {
    let place = Place::new().await;
    at_every_poll("acquire", &place, async |polls| {
        cut(place.locks.lock("a").acquire(), polls).await.is_some()
    })
    .await;
    at_every_poll("acquire with a wait", &place, async |polls| {
        let acquiring = place.locks.lock("a").wait(WAIT).acquire();
        cut(acquiring, polls).await.is_some()
    })
    .await;
    at_every_poll("try_acquire", &place, async |polls| {
        cut(place.locks.lock("a").try_acquire(), polls)
            .await
            .is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquiring_over_a_connection_that_is_not_there_yet() {
    let place = Place::new().await;
    at_every_poll("acquire over a new connection", &place, async |polls| {
        place.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let acquiring = place.locks.lock("a").wait(WAIT).acquire();
        cut(acquiring, polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_lock_that_is_released_meanwhile() {
    let place = Place::new().await;
    at_every_poll("a wait", &place, async |polls| {
        let held = place.locks.lock("a").acquire().await.unwrap();
        let acquiring = place.locks.lock("a").wait(WAIT).acquire();
        let waiting = tokio::spawn(cut(acquiring, polls));
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        let done = tokio::time::timeout(Duration::from_millis(300), waiting).await;
        // One that is polled no more often, for nothing wakes it, is dropped here.
        matches!(done, Ok(Ok(Some(Ok(_guard)))))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_waiter_has_the_lock_when_the_first_is_dropped() {
    let place = Place::new().await;
    at_every_poll("the first waiter", &place, async |polls| {
        let held = place.locks.lock("a").acquire().await.unwrap();
        let first = tokio::spawn(cut(place.locks.lock("a").wait(WAIT).acquire(), polls));
        let queued = async || place.server.cli(&["ZCARD", "{lock:a}:q"]).integer() == 1;
        let _queued_or_cut =
            tokio::time::timeout(Duration::from_millis(50), eventually_async(SOON, queued)).await;
        let second = tokio::spawn(place.locks.lock("a").wait(WAIT).acquire());
        held.release().await.unwrap();
        let first = tokio::time::timeout(Duration::from_millis(300), first).await;
        let done = matches!(&first, Ok(Ok(Some(Ok(_)))));
        drop(first);
        let second = tokio::time::timeout(SOON, second)
            .await
            .expect("the second waits for ever");
        second.unwrap().unwrap().release().await.unwrap();
        done
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_and_renewing() {
    let place = Place::new().await;
    at_every_poll("release", &place, async |polls| {
        let held = place.locks.lock("a").acquire().await.unwrap();
        cut(held.release(), polls).await.is_some()
    })
    .await;
    at_every_poll("renew", &place, async |polls| {
        let held = place.locks.lock("a").acquire().await.unwrap();
        cut(held.renew(), polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_a_body_under_a_lock() {
    let place = Place::new().await;
    at_every_poll("run", &place, async |polls| {
        let running = place.locks.lock("a").wait(WAIT).run(async |_held| {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        });
        cut(running, polls).await.is_some()
    })
    .await;
}

#[distributed_lock(name = "a", wait = "20s", manager = locks)]
async fn annotated(locks: &LockManager) -> Result<(), lock_core::LockError> {
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_annotated_function() {
    let place = Place::new().await;
    at_every_poll("an annotated function", &place, async |polls| {
        cut(annotated(&place.locks), polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listening_for_a_loss_and_shutting_down() {
    let place = Place::new().await;
    let held = place.locks.lock("a").acquire().await.unwrap();
    let moment = Duration::from_millis(20);
    for polls in 0..3 {
        // Nothing wakes one that is not lost: after a moment it is dropped where it stands.
        for lost in [held.lost(), held.watch().lost()] {
            let ended = tokio::time::timeout(moment, cut(lost, polls)).await;
            assert!(!matches!(ended, Ok(Some(()))));
        }
        let _drained_or_cut = cut(place.locks.shutdown(), polls).await;
    }
    assert!(!held.is_lost());
    drop(held);
    place.is_clean("a guard", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting() {
    let place = Place::new().await;
    for polls in 0..MANY {
        if let Some(connected) = cut(LockManager::connect(&place.server.url()), polls).await {
            connected.unwrap();
            return;
        }
    }
    panic!("still not connected");
}
