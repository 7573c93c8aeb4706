//! Kinds and sets that are rejected before the client sends a command.

use lock_core::error::{InvalidKindReason, InvalidSetting};
use lock_core::request::Names;
use lock_core::{Kind, LockError, LockManager, LockRequest, LockSet};
use test_support::RedisServer;
use test_support::fixtures::{NAME, SOON, ms};
use tests::supported_dialects;

use super::arguments::error_before_any_command;
use super::{assert_at_rest, assert_says, builder, connect};

/// Returns the errors of a request for a set from every call that can make it.
async fn errors_of_set(request: LockRequest<Names>) -> Vec<LockError> {
    let body = async |_: &LockSet| panic!("the body runs without the locks");
    vec![
        request.clone().acquire().await.unwrap_err(),
        request.clone().wait(SOON).acquire().await.unwrap_err(),
        request.clone().try_acquire().await.unwrap_err(),
        request.run::<()>(body).await.unwrap_err(),
    ]
}

/// Checks that a set is rejected for this reason, and that the client sent no command.
async fn assert_invalid_set(
    request: impl Fn(&LockManager) -> LockRequest<Names>,
    reason: InvalidKindReason,
) {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    for error in errors_of_set(request(&locks)).await {
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Kind { reason: found, .. }) if found == reason),
            "{error}"
        );
        assert_says(&error, &[&reason.to_string()]);
    }
    assert_eq!(monitor.stop().from_clients().count(), 0);
    assert_at_rest(&server, locks, &[]).await;
}

async fn assert_invalid_kind(
    request: impl Fn(LockRequest) -> LockRequest,
    reason: InvalidKindReason,
    words: &[&str],
) {
    let error = error_before_any_command(|locks| request(locks.lock(NAME))).await;
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Kind { reason: found, .. }) if found == reason),
        "{error}"
    );
    assert_says(&error, words);
}

const fn permits(of: u32, weight: u32) -> Kind {
    Kind::Permits { of, weight }
}

#[tokio::test]
async fn permits_out_of_range_are_rejected() {
    for of in [0, 10_001, u32::MAX] {
        let words = ["at least 1", "10000"];
        let reason = InvalidKindReason::Permits;
        assert_invalid_kind(|lock| lock.permits(of), reason, &words).await;
        assert_invalid_kind(|lock| lock.kind(permits(of, 1)), reason, &words).await;
    }
    let reason = InvalidKindReason::Permits;
    assert_invalid_set(|locks| locks.lock_all(["a", "b"]).permits(0), reason).await;
}

#[tokio::test]
async fn weight_out_of_range_is_rejected() {
    let reason = InvalidKindReason::Weight;
    for (of, weight) in [
        (4, 0),
        (4, 5),
        (1, 2),
        (256, 257),
        (10_000, 257),
        (8, u32::MAX),
    ] {
        let words = [&*format!("{weight} of {of} permits"), "256"];
        assert_invalid_kind(|lock| lock.permits(of).weight(weight), reason, &words).await;
        let kind = permits(of, weight);
        assert_invalid_set(|locks| locks.lock_all(["a", "b"]).kind(kind), reason).await;
    }
    // The largest numbers that fit.
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        for kind in [permits(10_000, 256), permits(256, 256), permits(1, 1)] {
            let held = locks.lock(NAME).kind(kind).acquire().await.unwrap();
            assert_eq!(held.kind(), kind);
            held.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn weight_without_permits_is_rejected() {
    let reason = InvalidKindReason::WeightWithoutPermits;
    let words = ["write `permits(8).weight(2)`"];
    assert_invalid_kind(|lock| lock.weight(2), reason, &words).await;
    assert_invalid_kind(|lock| lock.read().weight(1), reason, &words).await;
    assert_invalid_kind(|lock| lock.weight(2).permits(8), reason, &words).await;
    assert_invalid_set(|locks| locks.lock_all(["a", "b"]).weight(2), reason).await;
}

#[tokio::test]
async fn min_hold_of_a_reader_is_rejected() {
    let reason = InvalidKindReason::MinHold;
    let words = ["`min_hold`"];
    let read = |lock: LockRequest| lock.read().min_hold(ms(50));
    assert_invalid_kind(read, reason, &words).await;
    let readers = |locks: &LockManager| locks.lock_all(["a", "b"]).min_hold(ms(50)).read();
    assert_invalid_set(readers, reason).await;
}

#[tokio::test]
async fn set_without_names_or_with_too_many_is_rejected() {
    let none = |locks: &LockManager| locks.lock_all(Vec::<String>::new());
    assert_invalid_set(none, InvalidKindReason::NoNames).await;
    let many = |locks: &LockManager| locks.lock_all((0..65).map(|name| name.to_string()));
    assert_invalid_set(many, InvalidKindReason::TooManyNames).await;
}

/// The names before the invalid one are not locked.
#[tokio::test]
async fn set_with_one_invalid_name_is_rejected() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    for name in ["", "{a}:h", "a{}"] {
        for error in errors_of_set(locks.lock_all(["a", name, "z"])).await {
            assert!(
                matches!(error, LockError::Invalid(InvalidSetting::Name { .. })),
                "{error}"
            );
        }
    }
    for error in errors_of_set(locks.lock_all(["a", "z"]).ttl(ms(99))).await {
        assert!(
            matches!(error, LockError::Invalid(InvalidSetting::Ttl { .. })),
            "{error}"
        );
    }
    assert_eq!(monitor.stop().from_clients().count(), 0);
    assert_at_rest(&server, locks, &[]).await;
}

/// Dialects of other libraries have exclusive locks only.
#[tokio::test]
async fn shared_kinds_in_a_dialect_are_rejected() {
    let server = RedisServer::start();
    let mut dialects = supported_dialects();
    dialects.retain(|dialect| !dialect.capabilities().supports_shared_kinds());
    assert!(!dialects.is_empty());
    for dialect in dialects {
        let locks = builder().dialect(dialect);
        let locks = locks.connect(&server.url()).await.unwrap();
        let monitor = server.monitor();
        for kind in [Kind::Read, permits(4, 1)] {
            for request in [locks.lock(NAME), locks.lock(NAME).wait(SOON)] {
                let error = request.kind(kind).acquire().await.unwrap_err();
                let reason = InvalidKindReason::Dialect;
                assert!(
                    matches!(error, LockError::Invalid(InvalidSetting::Kind { reason: found, kind: asked, .. })
                        if found == reason && asked == kind),
                    "{dialect}: {error}"
                );
            }
        }
        assert_eq!(monitor.stop().from_clients().count(), 0, "{dialect}");
        assert_at_rest(&server, locks, &[]).await;
    }
}
