//! Another client removes the keys of a shared lock while two readers hold it.

use std::time::{Duration, Instant};

use lock_core::{Kind, LockGuard, LockManager, LockRequest, LossReason};
use test_support::fixtures::{KEY, NAME, SLACK, SOON, keys, ms};
use test_support::{RedisServer, eventually_async};
use tests::{fencing_token, granted, in_time, shut_down, start_waiter};

use super::HOLDERS;
use crate::connect;

/// The readers renew each third of it.
const TTL: Duration = ms(900);

const REMOVED: [&[&str]; 3] = [&[KEY], &[HOLDERS], &[KEY, HOLDERS]];

/// Two readers of a name, each with a manager of its own.
struct Readers {
    managers: [LockManager; 2],
    guards: [LockGuard; 2],
}

impl Readers {
    async fn start(server: &RedisServer) -> Self {
        let managers = [connect(server).await, connect(server).await];
        let read = async |locks: &LockManager| {
            let request = locks.lock(NAME).read().ttl(TTL);
            request.acquire().await.unwrap()
        };
        let guards = [read(&managers[0]).await, read(&managers[1]).await];
        assert_eq!(guards[0].fencing_token(), guards[1].fencing_token());
        Self { managers, guards }
    }

    fn token(&self) -> u64 {
        fencing_token(&self.guards[0])
    }

    /// Checks that each reader learns of its loss by its next renewal after `removed`, and that its release
    /// reports it.
    async fn expect_lost(self, removed: Instant) {
        for guard in &self.guards {
            let limit = (TTL / 3).saturating_sub(removed.elapsed());
            let lost = tokio::time::timeout(SOON, in_time(limit, guard.lost()));
            lost.await.expect("the reader learns of the loss");
            assert!(guard.is_lost() && guard.remaining().is_zero());
            assert!(guard.renew().await.unwrap_err().is_lost());
        }
        for guard in self.guards {
            let error = guard.release().await.unwrap_err();
            assert!(error.is_lost(), "{error}");
        }
        for locks in &self.managers {
            assert_eq!(locks.stats().lost, 1);
            shut_down(locks).await;
        }
    }
}

/// Waits until nothing is left: members of a group whose key is gone mean nothing, and expire with their leases.
async fn expect_nothing_left(server: &RedisServer) {
    eventually_async(TTL + SLACK, async || keys(server).is_empty()).await;
}

fn remove(server: &RedisServer, keys: &[&str]) -> Instant {
    let removed = server.cli(&[&["DEL"], keys].concat()).integer();
    assert_eq!(usize::try_from(removed), Ok(keys.len()), "{keys:?}");
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_learn_of_the_removal_at_their_next_renewal() {
    let server = RedisServer::start();
    for gone in REMOVED {
        let readers = Readers::start(&server).await;
        let watches = readers.guards.each_ref().map(LockGuard::watch);
        let removed = remove(&server, gone);
        readers.expect_lost(removed).await;
        // Without its holders, the key is still there, and belongs to none of them.
        let expected = match gone {
            [HOLDERS] => LossReason::Replaced,
            _ => LossReason::Removed,
        };
        for watch in watches {
            assert_eq!(watch.loss_reason(), Some(expected.clone()), "{gone:?}");
        }
        expect_nothing_left(&server).await;
    }
}

/// Acquires at once, with a greater token than that of the readers whose keys were removed.
async fn granted_after(readers: &Readers, request: LockRequest) -> LockGuard {
    let guard = request.try_acquire().await.unwrap();
    let guard = guard.expect("the lock is free");
    assert!(fencing_token(&guard) > readers.token());
    guard
}

/// The removal of either key ends all leases: the next caller gets the lock. The readers learn it at their next
/// renewal, and their releases do not touch the writer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writer_that_comes_after_the_removal_gets_the_lock_at_once() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for gone in REMOVED {
        let readers = Readers::start(&server).await;
        let removed = remove(&server, gone);
        let writer = granted_after(&readers, locks.lock(NAME).write()).await;
        readers.expect_lost(removed).await;
        writer.renew().await.unwrap();
        assert!(server.cli(&["GET", KEY]).text().starts_with("lk1:"));
        writer.release().await.unwrap();
        expect_nothing_left(&server).await;
    }
}

/// A client that deletes a key notifies no waiter. The first waiter in the queue polls when the lease that it
/// knows ends, and no renewal makes that lease longer any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_writer_gets_the_lock_when_the_leases_would_have_ended() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for gone in REMOVED {
        let readers = Readers::start(&server).await;
        let token = readers.token();
        let writer = start_waiter(&server, locks.lock(NAME).write().wait(SOON), 1).await;
        let removed = remove(&server, gone);
        // The readers keep their guards, so that no release hands the lock over.
        let writer = granted(TTL + SLACK, writer).await;
        assert!(fencing_token(&writer) > token);
        assert_eq!(writer.kind(), Kind::Exclusive);
        readers.expect_lost(removed).await;
        writer.renew().await.unwrap();
        writer.release().await.unwrap();
        expect_nothing_left(&server).await;
    }
}

/// Old members must not count in the new group: they would keep it alive, or take its permits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_after_the_removal_are_a_new_group() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for gone in REMOVED {
        let readers = Readers::start(&server).await;
        let removed = remove(&server, gone);
        let reader = granted_after(&readers, locks.lock(NAME).read()).await;
        assert_eq!(server.cli(&["ZCARD", HOLDERS]).integer(), 1, "{gone:?}");
        readers.expect_lost(removed).await;
        reader.renew().await.unwrap();
        let writer = locks.lock(NAME).write().try_acquire().await.unwrap();
        assert!(writer.is_none(), "{writer:?}");
        reader.release().await.unwrap();
        expect_nothing_left(&server).await;
    }
}
