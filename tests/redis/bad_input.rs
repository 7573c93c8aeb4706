//! Whatever is wrong is said: by a typed error whose message tells what to do, in time, and
//! without a trace in the server.

use std::time::{Duration, Instant};

use lock_core::{BackendErrorKind, LockError, LockManager, LockManagerBuilder, LockRequest};
use test_support::RedisServer;
use test_support::fixtures::{NOTICE, SOON, all_keys, keys, ms};
use tests::one_attempt;

mod arguments;
mod configuration;
mod connections;
mod foreign_keys;
mod server_states;
mod users;

/// Shorter than the default, so that a server which says nothing costs little, and far longer
/// than an answer takes.
const COMMAND_TIMEOUT: Duration = ms(500);

/// A wait on either side of the command timeout.
const WAITS: [Duration; 2] = [ms(400), ms(800)];

fn builder() -> LockManagerBuilder {
    one_attempt(LockManager::builder()).command_timeout(COMMAND_TIMEOUT)
}

async fn connect(server: &RedisServer) -> LockManager {
    builder().connect(&server.url()).await.unwrap()
}

/// What connecting says.
async fn connect_error(url: &str) -> LockError {
    let asked = Instant::now();
    let error = builder().connect(url).await.unwrap_err();
    let took = asked.elapsed();
    assert!(took <= COMMAND_TIMEOUT + NOTICE, "{url}: {took:?}");
    error
}

/// What a request says, in every way that it can be made.
async fn errors(request: LockRequest) -> Vec<LockError> {
    let mut errors = Vec::new();
    let mut in_time = |asked: Instant, limit: Duration, error: LockError| {
        let took = asked.elapsed();
        assert!(took <= limit + NOTICE, "{took:?}: {error}");
        errors.push(error);
    };
    let asked = Instant::now();
    let error = request.clone().acquire().await.unwrap_err();
    in_time(asked, COMMAND_TIMEOUT, error);
    let asked = Instant::now();
    let error = request.clone().try_acquire().await.unwrap_err();
    in_time(asked, COMMAND_TIMEOUT, error);
    let asked = Instant::now();
    let body = async |_: &_| panic!("the body runs without the lock");
    let error = request.clone().run::<()>(body).await.unwrap_err();
    in_time(asked, COMMAND_TIMEOUT, error);
    for wait in WAITS {
        let asked = Instant::now();
        let error = request.clone().wait(wait).acquire().await.unwrap_err();
        in_time(asked, wait, error);
    }
    errors
}

/// The message holds each of these words: what is wrong, and what to do.
#[track_caller]
fn assert_says(error: &LockError, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is missing: {text}");
    }
    assert!(!error.is_contended(), "refused is not busy: {text}");
    // It goes to logs and terminals.
    assert!(!text.contains(char::is_control), "{text:?}");
}

#[track_caller]
fn assert_backend(error: &LockError, kind: BackendErrorKind, advice: &str) {
    match error {
        LockError::Backend(cause) => assert_eq!(cause.kind(), kind, "{error}: {cause:?}"),
        other => panic!("it should be {kind:?}: {other}"),
    }
    assert_says(error, &[advice]);
}

/// Nothing that failed is still tried, or held.
async fn assert_at_rest(server: &RedisServer, locks: LockManager, left: &[&str]) {
    let ended = tokio::time::timeout(COMMAND_TIMEOUT * 2, locks.shutdown()).await;
    ended.expect("there is nothing to release").unwrap();
    assert_eq!(all_keys(server), left);
}

/// A short ttl for requests to a server that does not reply: the cancel of each ends with its ttl.
const SHORT: Duration = Duration::from_secs(1);

/// After the failure, the lock can be acquired and nothing is left.
async fn assert_usable_again(server: &RedisServer, locks: &LockManager) {
    let got = locks.lock("other").wait(SOON).acquire().await;
    got.unwrap().release().await.unwrap();
    let ended = tokio::time::timeout(SOON, locks.shutdown()).await;
    ended.expect("the cleanup ends").unwrap();
    assert_eq!(keys(server), Vec::<String>::new());
}
