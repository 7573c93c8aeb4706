//! The errors for tests of error handling.

use std::time::Duration;

use lock_core::error::{BackendErrorKind, InvalidNameReason, InvalidSetting};
use lock_core::{LockError, LossReason};
use lock_testing::errors;

#[test]
fn each_error_can_be_made() {
    const KEY: &str = "lock:order:7";
    let name = errors::invalid_name("", InvalidNameReason::Empty);
    assert!(matches!(
        name,
        LockError::Invalid(InvalidSetting::Name { .. })
    ));
    for (error, code, text) in [
        (
            errors::contended(KEY),
            "contended",
            "lock `lock:order:7` is busy; try later",
        ),
        (
            errors::timeout(KEY, Duration::from_secs(5)),
            "timeout",
            "lock `lock:order:7` was not free within 5s; try later",
        ),
        (
            errors::lost(KEY, LossReason::Expired),
            "lost",
            "lock `lock:order:7` was lost while it was held: ",
        ),
        (
            errors::queue_full(KEY, 3, None),
            "queue_full",
            "lock `lock:order:7` is busy, and its queue is full",
        ),
        (
            errors::done(KEY, "web-1", Duration::from_secs(60)),
            "done",
            "the work of lock `lock:order:7` is done: `web-1` succeeded",
        ),
        (
            errors::revoked(KEY, "ops"),
            "lost",
            "lock `lock:order:7` was lost while it was held: revoked by ops",
        ),
        (
            errors::would_deadlock(KEY),
            "would_deadlock",
            "this task already holds lock `lock:order:7`",
        ),
        (
            errors::foreign_key(KEY, "a list"),
            "foreign_key",
            "key `lock:order:7` holds a list, and cannot be locked; remove the key",
        ),
        (name, "invalid_name", "invalid lock name ``: "),
        (
            errors::invalid_setting("prefix", "{a}"),
            "invalid_setting",
            "invalid setting `prefix` (`{a}`): use another value",
        ),
        (
            LockError::NotConfigured,
            "not_configured",
            "no lock manager",
        ),
        (
            LockError::NoRuntime,
            "no_runtime",
            "there is no tokio runtime",
        ),
        (
            LockError::AlreadyInstalled,
            "already_installed",
            "a global lock manager is already installed",
        ),
        (
            LockError::ShuttingDown,
            "shutting_down",
            "the lock manager is closed or shutting down",
        ),
        (LockError::Forked, "forked", "the process was forked"),
        (
            errors::no_quorum(1, 3),
            "no_quorum",
            "1 of 3 lock servers confirmed, and 2 are needed",
        ),
        (
            errors::backend(BackendErrorKind::Loading),
            "loading",
            "the lock server failed in a test: the server is still loading",
        ),
    ] {
        assert_eq!(error.code(), code);
        assert!(error.to_string().starts_with(text), "{error}");
        let is_about_the_lock = text.contains(KEY);
        assert_eq!(error.key(), is_about_the_lock.then_some(KEY), "{error}");
    }
}
