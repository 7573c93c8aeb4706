//! Every public future is dropped after every number of polls, and nothing stays behind.
//!
//! The ttl is longer than the time of a round, so a key that only expires would be detected.

use std::time::Duration;

use lock_core::{Kind, LockError, LockManager, distributed_lock};
use test_support::{RedisServer, cut, eventually_async};
use tests::shut_down;

const TTL: Duration = Duration::from_secs(60);
const WAIT: Duration = Duration::from_secs(20);
/// A dropped acquire is cancelled at once, and again when none of its commands can take effect any
/// more.
const SOON: Duration = Duration::from_secs(5);
const KINDS: [Kind; 3] = [
    Kind::Exclusive,
    Kind::Read,
    Kind::Permits { of: 3, weight: 2 },
];
/// No future here needs more polls to complete.
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

    /// Checks that neither the lock nor a queue entry is left.
    async fn is_clean(&self, what: &str, polls: usize) {
        let keys = [
            "lock:a",
            "{lock:a}:q",
            "{lock:a}:h",
            "lock:b",
            "{lock:b}:q",
            "lock:c",
            "{lock:c}:q",
        ];
        let clean = async || !keys.iter().any(|key| self.exists(key));
        let waiting = tokio::time::timeout(SOON, eventually_async(SOON, clean));
        assert!(
            waiting.await.is_ok(),
            "{what} dropped after {polls} polls left a key"
        );
    }
}

/// Runs `round` with more and more polls, until its future completes before it is dropped. Then again, with the
/// connections that exist by now: without that, the first command may never be dropped in flight.
async fn at_every_poll(what: &str, place: &Place, mut round: impl AsyncFnMut(usize) -> bool) {
    for _ in 0..2 {
        let mut polls = 0;
        while !round(polls).await {
            place.is_clean(what, polls).await;
            polls += 1;
            assert!(polls < MANY, "{what} is incomplete after {polls} polls");
        }
        assert!(polls > 0, "{what} was never dropped");
        place.is_clean(what, polls).await;
    }
    // After the cleanup no command can create a key.
    shut_down(&place.locks).await;
    place.is_clean(what, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquire_of_a_free_lock_leaves_no_key() {
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
async fn dropped_acquire_of_a_free_set_leaves_no_key() {
    let place = Place::new().await;
    let set = || place.locks.lock_all(["a", "b", "c"]);
    at_every_poll("acquire of a set", &place, async |polls| {
        cut(set().wait(WAIT).acquire(), polls).await.is_some()
    })
    .await;
    let place = Place::new().await;
    let set = || place.locks.lock_all(["a", "b", "c"]);
    at_every_poll("try_acquire of a set", &place, async |polls| {
        cut(set().try_acquire(), polls).await.is_some()
    })
    .await;
    let place = Place::new().await;
    let set = || place.locks.lock_all(["a", "b", "c"]);
    at_every_poll("run of a set", &place, async |polls| {
        let running = set().run(async |_| tokio::task::yield_now().await);
        cut(running, polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_set_that_waits_for_a_released_lock_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("a waiting set", &place, async |polls| {
        let held = place.locks.lock("b").acquire().await.unwrap();
        let acquiring = place.locks.lock_all(["a", "b", "c"]).wait(WAIT).acquire();
        let waiting = tokio::spawn(cut(acquiring, polls));
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        let done = tokio::time::timeout(Duration::from_millis(300), waiting).await;
        // A future that nothing wakes is dropped here.
        matches!(done, Ok(Ok(Some(Ok(_set)))))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquire_of_each_kind_leaves_no_key() {
    for kind in KINDS {
        let place = Place::new().await;
        at_every_poll(&format!("{kind}"), &place, async |polls| {
            let acquiring = place.locks.lock("a").kind(kind).wait(WAIT).acquire();
            cut(acquiring, polls).await.is_some()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_downgrade_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("downgrade", &place, async |polls| {
        let held = place.locks.lock("a").write().acquire().await.unwrap();
        cut(held.downgrade(), polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_ticket_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("into_ticket", &place, async |polls| {
        let held = place.locks.lock("a").acquire().await.unwrap();
        let Some(ticket) = cut(held.into_ticket(TTL), polls).await else {
            return false;
        };
        let resumed = place.locks.resume(ticket.unwrap()).await.unwrap();
        resumed.release().await.unwrap();
        true
    })
    .await;
    let place = Place::new().await;
    at_every_poll("resume", &place, async |polls| {
        let held = place.locks.lock("a").acquire().await.unwrap();
        let ticket = held.into_ticket(TTL).await.unwrap();
        let is_resumed = cut(place.locks.resume(ticket.clone()), polls)
            .await
            .is_some();
        // The dropped future leaves the lock free, or the ticket valid.
        match place.locks.resume(ticket).await {
            Ok(again) => again.release().await.unwrap(),
            Err(error) => assert!(matches!(error, LockError::TicketEnded { .. }), "{error}"),
        }
        is_resumed
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_release_of_a_set_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("release of a set", &place, async |polls| {
        let set = place.locks.lock_all(["a", "b", "c"]).read();
        let set = set.wait(WAIT).acquire().await.unwrap();
        cut(set.release(), polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_leader_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("lead", &place, async |polls| {
        let leading = place
            .locks
            .lock("a")
            .lead(async |_| tokio::task::yield_now().await);
        cut(leading, polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_campaign_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("campaign", &place, async |polls| {
        let term = async {
            let mut election = place.locks.lock("a").campaign();
            let term = election.next().await.unwrap().unwrap();
            term.resign().await
        };
        cut(term, polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquire_on_a_new_connection_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("acquire over a new connection", &place, async |polls| {
        place.server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        let acquiring = place.locks.lock("a").wait(WAIT).acquire();
        cut(acquiring, polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_waiter_of_a_released_lock_leaves_no_key() {
    for kind in KINDS {
        let place = Place::new().await;
        at_every_poll(&format!("a wait, {kind}"), &place, async |polls| {
            let held = place.locks.lock("a").acquire().await.unwrap();
            let acquiring = place.locks.lock("a").kind(kind).wait(WAIT).acquire();
            let waiting = tokio::spawn(cut(acquiring, polls));
            tokio::task::yield_now().await;
            held.release().await.unwrap();
            let done = tokio::time::timeout(Duration::from_millis(300), waiting).await;
            // A future that nothing wakes is dropped here.
            matches!(done, Ok(Ok(Some(Ok(_guard)))))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_waiter_gets_the_lock_of_a_dropped_waiter() {
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
            .expect("the second waiter gets the lock");
        second.unwrap().unwrap().release().await.unwrap();
        done
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_release_and_renew_leave_no_key() {
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
async fn dropped_run_leaves_no_key() {
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
async fn dropped_annotated_function_leaves_no_key() {
    let place = Place::new().await;
    at_every_poll("an annotated function", &place, async |polls| {
        cut(annotated(&place.locks), polls).await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_lost_and_shutdown_leave_no_key() {
    let place = Place::new().await;
    let held = place.locks.lock("a").acquire().await.unwrap();
    let moment = Duration::from_millis(20);
    for polls in 0..3 {
        // Nothing wakes a future of a lock that is not lost, so it is dropped after a moment.
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
async fn dropped_connect_leaves_no_connection() {
    let place = Place::new().await;
    for polls in 0..MANY {
        if let Some(connected) = cut(LockManager::connect(&place.server.url()), polls).await {
            connected.unwrap();
            return;
        }
    }
    panic!("the connection is incomplete after all polls");
}
