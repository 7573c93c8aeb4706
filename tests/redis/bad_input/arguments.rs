//! Names, durations and intervals that are refused before anything is sent.

use std::time::{Duration, Instant};

use lock_core::{InvalidNameReason, LockError, LockManager, LockRequest, Renew};
use test_support::RedisServer;
use test_support::fixtures::{COUNTER, NAME, SOON, all_keys, ms};

use super::{assert_at_rest, assert_says, builder, connect, errors};

/// The server never hears of it.
async fn refused_unseen(request: impl Fn(&LockManager) -> LockRequest) -> LockError {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    let mut all = errors(request(&locks)).await;
    all.extend(errors(request(&LockManager::in_memory())).await);
    assert_eq!(monitor.stop().from_clients().count(), 0);
    assert_at_rest(&server, locks, &[]).await;
    let last = all.pop().unwrap();
    assert!(all.iter().all(|e| e.to_string() == last.to_string()));
    last
}

async fn name_fault(name: &str, fault: InvalidNameReason, words: &[&str]) {
    let error = refused_unseen(|locks| locks.lock(name)).await;
    let LockError::InvalidName { reason: said, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*said, fault);
    assert_says(&error, words);
    assert!(error.to_string().len() < 300, "it repeats the whole name");
}

#[tokio::test]
async fn an_empty_name() {
    name_fault("", InvalidNameReason::Empty, &["empty", "give"]).await;
}

#[tokio::test]
async fn names_that_are_too_long() {
    let advice = ["1024 bytes", "digest"];
    name_fault(&"x".repeat(1025), InvalidNameReason::TooLong, &advice).await;
    name_fault(&"é".repeat(513), InvalidNameReason::TooLong, &advice).await;
    name_fault(&"x".repeat(1 << 20), InvalidNameReason::TooLong, &advice).await;
}

#[tokio::test]
async fn names_with_stray_braces() {
    for name in ["{", "}", "a{}", "{a}{b}", "{a{b}}", "}a{", "{a", "a}"] {
        name_fault(
            name,
            InvalidNameReason::Braces,
            &["hash tag", "{user1}:cart"],
        )
        .await;
    }
}

#[tokio::test]
async fn names_of_companion_keys() {
    for name in ["{a}:q", "x{a}y:f", "{a}:g"] {
        name_fault(name, InvalidNameReason::Companion, &["may not end in"]).await;
    }
}

#[tokio::test]
async fn a_prefix_with_a_brace() {
    let server = RedisServer::start();
    let builder = builder().prefix("shop{1}:");
    let connected = builder.clone().connect(&server.url()).await;
    for error in [connected.unwrap_err(), builder.try_in_memory().unwrap_err()] {
        assert_says(&error, &["prefix", "put the hash tag into the name"]);
    }
    assert_eq!(all_keys(&server), Vec::<String>::new());
}

#[tokio::test]
async fn ttls_out_of_range() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(99),
        Duration::from_nanos(99_999_999),
        DAY + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        let error = refused_unseen(|locks| locks.lock(NAME).ttl(ttl)).await;
        assert!(matches!(error, LockError::InvalidTtl { ttl: said, .. } if said == ttl));
        assert_says(&error, &["at least 100 ms", "at most 24 h"]);
        let connected = builder().default_ttl(ttl).connect("memory://").await;
        let error = connected.unwrap_err();
        assert!(matches!(error, LockError::InvalidTtl { .. }), "{error}");
        let error = builder().default_ttl(ttl).try_in_memory().unwrap_err();
        assert!(matches!(error, LockError::InvalidTtl { .. }), "{error}");
    }
    let locks = LockManager::in_memory();
    for ttl in [ms(100), DAY] {
        let got = locks.lock(NAME).ttl(ttl).acquire().await;
        got.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn renewal_intervals_out_of_range() {
    for every in [
        Duration::ZERO,
        ms(9),
        Duration::from_secs(16),
        Duration::MAX,
    ] {
        let error = refused_unseen(|locks| locks.lock(NAME).renew(Renew::Every(every))).await;
        assert!(matches!(error, LockError::InvalidRenewal { .. }), "{error}");
        assert_says(&error, &["at least 10 ms", "at most half of the ttl"]);
    }
}

#[tokio::test]
async fn a_zero_wait_makes_one_attempt() {
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        let request = locks.lock(NAME).wait(Duration::ZERO);
        let held = request.clone().acquire().await.unwrap();
        let begun = Instant::now();
        let error = request.clone().acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Contended { .. }), "{error}");
        assert!(error.holder().is_some(), "{error}");
        assert!(request.try_acquire().await.unwrap().is_none());
        assert!(begun.elapsed() < Duration::from_millis(500));
        held.release().await.unwrap();
    }
    assert_eq!(all_keys(&server), [COUNTER]);
}

#[tokio::test]
async fn the_longest_wait_works() {
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        let request = locks.lock(NAME).wait(Duration::MAX);
        let held = request.clone().acquire().await.unwrap();
        let waiting = tokio::spawn(request.acquire());
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        held.release().await.unwrap();
        let got = tokio::time::timeout(SOON, waiting).await;
        got.unwrap().unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn the_longest_command_timeout_works() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(Duration::MAX);
    let locks = builder.connect(&server.url()).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    drop(locks.lock(NAME).wait(SOON).acquire().await.unwrap());
    assert_at_rest(&server, locks, &[COUNTER]).await;
}
