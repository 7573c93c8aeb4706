//! Every invalid input and every refusal gives a typed error in time. Its message says what to do,
//! and nothing stays behind on the server.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager, LockManagerBuilder, LockRequest};
use test_support::RedisServer;
use test_support::fixtures::{SOON, all_keys, keys, ms};
use tests::{in_time, one_attempt};

mod arguments;
mod configuration;
mod connections;
mod foreign_keys;
mod kinds;
mod server_states;
mod users;

/// Short, so that a server that does not reply costs little time. Far longer than a reply takes on a busy machine.
const COMMAND_TIMEOUT: Duration = ms(1_500);

/// A wait below and a wait above the command timeout.
const WAITS: [Duration; 2] = [ms(1_200), ms(2_000)];

fn builder() -> LockManagerBuilder {
    one_attempt(LockManager::builder()).command_timeout(COMMAND_TIMEOUT)
}

async fn connect(server: &RedisServer) -> LockManager {
    builder().connect(&server.url()).await.unwrap()
}

/// Returns the error of connecting.
async fn connect_error(url: &str) -> LockError {
    let connecting = builder().connect(url);
    in_time(COMMAND_TIMEOUT, connecting).await.unwrap_err()
}

/// Returns the errors of a request from every call that can make it.
async fn errors(request: LockRequest) -> Vec<LockError> {
    let acquire = request.clone().acquire();
    let acquired = in_time(COMMAND_TIMEOUT, acquire).await;
    let tried = in_time(COMMAND_TIMEOUT, request.clone().try_acquire()).await;
    let body = async |_: &_| panic!("the body runs without the lock");
    let ran = in_time(COMMAND_TIMEOUT, request.clone().run::<()>(body)).await;
    let mut errors = vec![acquired.unwrap_err(), tried.unwrap_err(), ran.unwrap_err()];
    for wait in WAITS {
        let waited = in_time(wait, request.clone().wait(wait).acquire()).await;
        errors.push(waited.unwrap_err());
    }
    errors
}

/// Checks that the message contains each of these words: what happened, and what to do.
#[track_caller]
fn assert_says(error: &LockError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is missing: {text}");
    }
    assert!(
        !error.is_contended(),
        "a refusal counts as contended: {text}"
    );
    // Logs and terminals show the message.
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[track_caller]
fn assert_backend(error: &LockError, kind: BackendErrorKind, advice: &str) {
    match error {
        LockError::Backend(cause) => assert_eq!(cause.kind(), kind, "{error}: {cause:?}"),
        other => panic!("expected {kind:?}: {other}"),
    }
    assert_says(error, &[advice]);
}

/// Checks that no failed call is still retried or holds a lock.
async fn assert_at_rest(server: &RedisServer, locks: LockManager, left: &[&str]) {
    let ended = tokio::time::timeout(COMMAND_TIMEOUT * 2, locks.shutdown()).await;
    ended.expect("nothing is left to release").unwrap();
    assert_eq!(all_keys(server), left);
}

/// A short ttl for requests to a server that does not reply: cancels end with the ttl.
const SHORT: Duration = Duration::from_secs(1);

/// Checks that the lock can be acquired after the failure, and leaves no key.
async fn assert_usable_again(server: &RedisServer, locks: &LockManager) {
    let got = locks.lock("other").wait(SOON).acquire().await;
    got.unwrap().release().await.unwrap();
    let ended = tokio::time::timeout(SOON, locks.shutdown()).await;
    ended.expect("the cleanup completes").unwrap();
    assert_eq!(keys(server), Vec::<String>::new());
}
