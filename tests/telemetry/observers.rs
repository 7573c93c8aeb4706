//! Observers that panic, block, and call the library.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use lock_core::telemetry::{HoldEnd, LockEvent};
use lock_core::{LockGuard, LockManager, Renew};
use test_support::fixtures::{KEY, NAME, SOON, exists, ms};
use test_support::{RedisServer, eventually_async};
use tests::{lost_in_time, one_attempt, start_waiter};

use super::alone;

/// All that a caller sees is the same with and without the observer.
#[test]
fn a_panicking_observer_changes_nothing() {
    alone(async {
        let server = RedisServer::start();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let builder = one_attempt(LockManager::builder()).observer(move |_: &LockEvent<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("the observer");
        });
        let locks = builder.connect(&server.url()).await.unwrap();
        let request = || locks.lock(NAME).ttl(ms(600));
        let value = request().run(async |_: &LockGuard| 42).await;
        assert_eq!(value.unwrap(), 42);
        let held = request().acquire().await.unwrap();
        assert!(request().try_acquire().await.unwrap().is_none());
        // Renewals go on.
        tests::assert_held_for(ms(1_000), &held).await;
        let waiter = start_waiter(&server, request().wait(SOON), 1).await;
        held.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        server.cli(&["DEL", KEY]);
        lost_in_time(&next).await;
        drop(next);
        let cancelled = tests::poll_once(&mut Box::pin(request().acquire())).await;
        assert!(cancelled.is_pending());
        tests::shut_down(&locks).await;
        assert!(!exists(&server, KEY));
        assert_eq!(locks.stats().lost, 1);
        assert!(calls.load(Ordering::Relaxed) > 10);
        // An event of the background worker may be between the call and its count.
        eventually_async(SOON, async || {
            u64::try_from(calls.load(Ordering::Relaxed)) == Ok(locks.stats().panics)
        })
        .await;
    });
}

/// No event is emitted under a mutex, so an observer may use the library.
#[test]
fn observer_may_call_the_library() {
    alone(async {
        let server = RedisServer::start();
        let shared: Arc<Mutex<Option<LockManager>>> = Arc::default();
        let seen = Arc::clone(&shared);
        let builder = one_attempt(LockManager::builder()).observer(move |_: &LockEvent<'_>| {
            assert_eq!(lock_core::testing::held_mutexes(), 0);
            let locks = seen.lock().unwrap().clone();
            if let Some(locks) = locks {
                assert_eq!(locks.stats().panics, 0);
                assert!(locks.health().held < 10);
            }
        });
        let locks = builder.connect(&server.url()).await.unwrap();
        *shared.lock().unwrap() = Some(locks.clone());
        let request = || locks.lock(NAME).ttl(ms(600));
        let held = request().acquire().await.unwrap();
        let waiter = start_waiter(&server, request().wait(SOON), 1).await;
        tests::assert_held_for(ms(500), &held).await;
        server.cli(&["DEL", KEY]);
        lost_in_time(&held).await;
        drop(waiter.await.unwrap().unwrap());
        tests::shut_down(&locks).await;
        assert_eq!(locks.stats().panics, 0);
        *shared.lock().unwrap() = None;
    });
}

/// The worker reports the loss while the task drops or releases the guard. The lock still ends as lost.
#[test]
fn guard_that_ends_while_its_loss_is_reported_ends_as_lost() {
    for end in [End::Drop, End::Release] {
        ends_as_lost(end);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Drop,
    Release,
}

fn ends_as_lost(end: End) {
    alone(async {
        let server = RedisServer::start();
        let (reported, is_reported) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let may_go_on = Mutex::new(may_go_on);
        let ends: Arc<Mutex<Vec<HoldEnd>>> = Arc::default();
        let seen = Arc::clone(&ends);
        let builder = LockManager::builder().observer(move |event: &LockEvent<'_>| match event {
            LockEvent::Lost { .. } => {
                reported.send(()).unwrap();
                may_go_on.lock().unwrap().recv_timeout(SOON).unwrap();
            }
            LockEvent::HoldEnded { outcome, .. } => seen.lock().unwrap().push(*outcome),
            _ => {}
        });
        let locks = builder.connect(&server.url()).await.unwrap();
        let request = locks.lock(NAME).ttl(ms(600)).renew(Renew::Never);
        let held = request.acquire().await.unwrap();
        // The server still has the key of the guard when the lease ends for the client.
        server.cli(&["PEXPIRE", KEY, "60000"]);
        is_reported.recv_timeout(SOON).unwrap();
        match end {
            End::Drop => drop(held),
            End::Release => {
                let error = held.release().await.unwrap_err();
                assert!(error.is_lost(), "{error}");
            }
        }
        go_on.send(()).unwrap();
        eventually_async(SOON, async || !ends.lock().unwrap().is_empty()).await;
        assert_eq!(*ends.lock().unwrap(), [HoldEnd::Lost]);
        assert_eq!(locks.stats().panics, 0);
    });
}
