//! How long a request without a `wait` waits.

use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager};
use test_support::RedisServer;
use test_support::fixtures::{NAME, SOON, ms};

#[tokio::test]
async fn acquire_and_run_wait_for_the_default_wait_of_the_manager() {
    let server = RedisServer::start();
    let builder = LockManager::builder().default_wait(ms(300));
    let on_server = builder.clone().connect(&server.url()).await.unwrap();
    for locks in [on_server, builder.in_memory().unwrap()] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let acquired = locks.lock(NAME).acquire().await.map(drop);
        let ran = locks.lock(NAME).run(async |_| ()).await;
        for outcome in [acquired, ran] {
            let Err(LockError::Timeout { waited, .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert!((ms(300)..ms(800)).contains(&waited), "{waited:?}");
        }
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn acquire_without_a_wait_gets_a_lock_that_is_released_meanwhile() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock(NAME).acquire());
    tokio::time::sleep(ms(100)).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn default_wait_is_five_seconds() {
    let locks = LockManager::in_memory();
    let _held = locks.lock(NAME).acquire().await.unwrap();
    let error = locks.lock(NAME).acquire().await.unwrap_err();
    let LockError::Timeout { waited, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(waited, Duration::from_secs(5));
}

#[tokio::test]
async fn default_wait_of_zero_makes_one_attempt() {
    let server = RedisServer::start();
    let builder = LockManager::builder().default_wait(Duration::ZERO);
    let locks = builder.connect(&server.url()).await.unwrap();
    let _held = locks.lock(NAME).acquire().await.unwrap();
    let error = locks.lock(NAME).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Contended { .. }), "{error}");
    assert!(error.holder().is_some(), "{error}");
}

#[tokio::test]
async fn try_acquire_never_waits() {
    let server = RedisServer::start();
    let on_server = LockManager::connect(&server.url()).await.unwrap();
    for locks in [on_server, LockManager::in_memory()] {
        let _held = locks.lock(NAME).acquire().await.unwrap();
        let begun = Instant::now();
        for request in [locks.lock(NAME), locks.lock(NAME).wait(SOON)] {
            assert!(request.try_acquire().await.unwrap().is_none());
        }
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
}
