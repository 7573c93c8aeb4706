//! The time after which a client should call again.

use std::time::Duration;

use actix_web::ResponseError;
use axum::response::IntoResponse;
use lock_core::{LockError, LockManager, Renew};
use test_support::RedisServer;
use test_support::fixtures::{KEY, NAME, ms};
use tokio::time::advance;
use tonic::Status;
use tonic_types::StatusExt;

/// The seconds that the three frameworks send.
fn sent(error: &LockError) -> [u64; 3] {
    let axum = error.clone().into_response();
    let axum = axum.headers()["retry-after"].to_str().expect("it is text");
    let actix = error.error_response();
    let actix = actix.headers().get("retry-after").expect("it is set");
    let actix = actix.to_str().expect("it is text");
    let status = Status::from(error.clone());
    let tonic = status.get_details_retry_info().expect("it is set");
    [
        axum.parse().expect("it is a number"),
        actix.parse().expect("it is a number"),
        tonic.retry_delay.expect("it is set").as_secs(),
    ]
}

async fn contended(locks: &LockManager) -> LockError {
    let busy = locks.lock(NAME).wait(Duration::ZERO).acquire().await;
    let busy = busy.expect_err("it is held");
    assert!(busy.is_contended(), "{busy}");
    busy
}

#[tokio::test(start_paused = true)]
async fn retry_after_follows_the_holders_age() {
    let locks = LockManager::in_memory();
    let minute = locks.lock(NAME).ttl(ms(60_000)).renew(Renew::Never);
    let _held = minute.acquire().await.expect("it is free");
    assert_eq!(sent(&contended(&locks).await), [1; 3]);
    advance(ms(7_200)).await;
    assert_eq!(sent(&contended(&locks).await), [8; 3]);
    advance(ms(24_000)).await;
    assert_eq!(sent(&contended(&locks).await), [29; 3]);
    // The holder may be dead. Then the lock is free at the end of its lease.
    advance(ms(20_000)).await;
    assert_eq!(sent(&contended(&locks).await), [9; 3]);
}

#[tokio::test]
async fn retry_after_follows_the_age_and_the_lease_on_a_server() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
    let held = locks.lock(NAME).acquire().await.expect("it is free");
    assert_eq!(sent(&contended(&locks).await), [1; 3]);
    // The time itself is what the test is about.
    tokio::time::sleep(ms(1_050)).await;
    let seconds = sent(&contended(&locks).await);
    assert!(seconds[0] >= 2, "{seconds:?}");
    held.release().await.expect("it is held");
    // The lock of another library has an unknown age.
    for (lease, seconds) in [("3900", 4), ("60000", 5)] {
        server.cli(&["SET", KEY, "1234", "PX", lease]);
        assert_eq!(sent(&contended(&locks).await), [seconds; 3], "{lease}");
    }
}
