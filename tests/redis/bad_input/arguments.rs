//! Names, durations and intervals that are rejected before the client sends a command.

use std::time::{Duration, Instant};

use lock_core::error::{InvalidNameReason, InvalidSetting};
use lock_core::{LockError, LockManager, LockRequest, Renew};
use test_support::RedisServer;
use test_support::fixtures::{COUNTER, NAME, SOON, all_keys, ms};

use super::{assert_at_rest, assert_says, builder, connect, errors};

/// Returns the error of a request, and checks that the client sent no command.
pub(super) async fn error_before_any_command(
    request: impl Fn(&LockManager) -> LockRequest,
) -> LockError {
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

async fn assert_invalid_name(name: &str, reason: InvalidNameReason, words: &[&str]) {
    let error = error_before_any_command(|locks| locks.lock(name)).await;
    let LockError::Invalid(InvalidSetting::Name { reason: actual, .. }) = &error else {
        panic!("{error}");
    };
    assert_eq!(*actual, reason);
    assert_says(&error, words);
    assert!(
        error.to_string().len() < 300,
        "the error repeats the whole name"
    );
}

#[tokio::test]
async fn empty_name_is_rejected() {
    assert_invalid_name("", InvalidNameReason::Empty, &["empty", "give"]).await;
}

#[tokio::test]
async fn long_name_is_rejected() {
    let advice = ["1024 bytes", "digest"];
    assert_invalid_name(&"x".repeat(1025), InvalidNameReason::TooLong, &advice).await;
    assert_invalid_name(&"é".repeat(513), InvalidNameReason::TooLong, &advice).await;
    assert_invalid_name(&"x".repeat(1 << 20), InvalidNameReason::TooLong, &advice).await;
}

#[tokio::test]
async fn name_with_stray_braces_is_rejected() {
    for name in ["{", "}", "a{}", "{a}{b}", "{a{b}}", "}a{", "{a", "a}"] {
        assert_invalid_name(
            name,
            InvalidNameReason::Braces,
            &["hash tag", "{user1}:cart"],
        )
        .await;
    }
}

#[tokio::test]
async fn name_of_a_companion_key_is_rejected() {
    for name in ["{a}:q", "x{a}y:f", "{a}:g"] {
        assert_invalid_name(name, InvalidNameReason::Companion, &["may not end in"]).await;
    }
}

#[tokio::test]
async fn prefix_with_a_brace_is_rejected() {
    let server = RedisServer::start();
    let builder = builder().prefix("shop{1}:");
    let connected = builder.clone().connect(&server.url()).await;
    for error in [connected.unwrap_err(), builder.in_memory().unwrap_err()] {
        assert_says(&error, &["prefix", "put the hash tag into the name"]);
    }
    assert_eq!(all_keys(&server), Vec::<String>::new());
}

#[tokio::test]
async fn ttl_out_of_range_is_rejected() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(1),
        ms(99),
        Duration::from_nanos(99_999_999),
        DAY + Duration::from_nanos(1),
        Duration::MAX,
    ] {
        let error = error_before_any_command(|locks| locks.lock(NAME).ttl(ttl)).await;
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Ttl { ttl: rejected, .. }) if rejected == ttl)
        );
        assert_says(&error, &["at least 100 ms", "at most 24 h"]);
        let connected = builder().default_ttl(ttl).connect("memory://").await;
        let error = connected.unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Ttl { .. })),
            "{error}"
        );
        assert_says(
            &error,
            &["`default_ttl`", "at least 100 ms", "at most 24 h"],
        );
        let error = builder().default_ttl(ttl).in_memory().unwrap_err();
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Ttl { .. })),
            "{error}"
        );
    }
    let locks = LockManager::in_memory();
    for ttl in [ms(100), DAY] {
        let got = locks.lock(NAME).ttl(ttl).acquire().await;
        got.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn renewal_interval_out_of_range_is_rejected() {
    for every in [
        Duration::ZERO,
        ms(9),
        Duration::from_secs(16),
        Duration::MAX,
    ] {
        let error =
            error_before_any_command(|locks| locks.lock(NAME).renew(Renew::Every(every))).await;
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Renewal { .. })),
            "{error}"
        );
        assert_says(&error, &["at least 10 ms", "at most half of the ttl"]);
    }
}

#[tokio::test]
async fn zero_wait_makes_one_attempt() {
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
async fn longest_wait_works() {
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
async fn longest_command_timeout_works() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(Duration::MAX);
    let locks = builder.connect(&server.url()).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    drop(locks.lock(NAME).wait(SOON).acquire().await.unwrap());
    assert_at_rest(&server, locks, &[COUNTER]).await;
}
