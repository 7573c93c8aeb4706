//! The values in a key that cannot be locked, and what to do about them.

use std::time::Duration;

use crate::error::LockError;
use lock_protocol::clock::ServerMs;
use lock_protocol::dialect::Dialect;
use lock_protocol::key::LockKey;
use lock_protocol::wire::{MAX_LABEL, is_deadline, tidy};

const RENAME: &str = "remove the key, or use another name or prefix";
const NEVER_TAKEN: &str = "let all services that share this key use one dialect, or use another \
                           name or prefix; the key is never taken over";

fn foreign(key: &LockKey, found: String, advice: impl Into<String>) -> LockError {
    LockError::ForeignKey {
        key: key.text(),
        found: found.into(),
        advice: advice.into().into(),
    }
}

/// The key is of another type than a string.
pub(crate) fn of_type(key: &LockKey, kind: &str) -> LockError {
    #[cfg(feature = "redis")]
    if matches!(key.dialect(), Dialect::Redisson { .. }) {
        return no_redisson_lock(key, kind);
    }
    if kind == "hash" {
        // It may be a lock in use, so the advice does not say to remove it.
        let found = "a hash, as Redisson's locks are".to_owned();
        let advice = "`Dialect::Redisson` speaks them: use it in all services that share this key, or use another name or prefix";
        return foreign(key, found, advice);
    }
    foreign(key, format!("a {}", tidy(kind, MAX_LABEL)), RENAME)
}

/// The key is no lock of Redisson that this library speaks. `found` is its type, or what the script found.
#[cfg(feature = "redis")]
pub(crate) fn no_redisson_lock(key: &LockKey, found: &str) -> LockError {
    let dialect = key.dialect();
    let (found, advice) = match found {
        "read-write lock" => (
            "a read-write lock of Redisson (`RReadWriteLock`)".to_owned(),
            format!("`Dialect::{dialect}` has exclusive locks only; use another name for them"),
        ),
        "hash" => (
            "a hash that is no lock of Redisson, or one of a kind that this library does not have (such as \
             `FasterMultiLock`)"
                .to_owned(),
            "use another name or prefix".to_owned(),
        ),
        "token counter" => (
            format!("a counter of tokens (`{}`) that is no positive number", key.redisson_counter()),
            "let no other client write that key".to_owned(),
        ),
        other => (
            format!(
                "a {} where `Dialect::{dialect}` expects a hash; semaphores of Redisson and locks in other \
                 dialects are not hashes",
                tidy(other, MAX_LABEL)
            ),
            NEVER_TAKEN.to_owned(),
        ),
    };
    foreign(key, found, advice)
}

/// A companion key of a native lock is of another type than the lock needs.
#[cfg(feature = "redis")]
pub(crate) fn companion(key: &LockKey) -> LockError {
    let found = "a companion key of another type (its queue `:q`, counter `:f` or holders `:h`)";
    foreign(key, found.to_owned(), RENAME)
}

/// The fencing counter of a native lock holds a number that no clock gives.
#[cfg(feature = "redis")]
pub(crate) fn counter_too_high(key: &LockKey) -> LockError {
    let found = format!("a fencing counter (`{}`) beyond any time", key.counter());
    let advice = "delete that key, and tokens continue from the server's time; a resource that has accepted a higher token \
                  has to forget it";
    foreign(key, found, advice)
}

/// The key has had no expiry for longer than a client needs to set one in a second command.
pub(crate) fn no_expiry(key: &LockKey, value: &str) -> LockError {
    if matches!(key.dialect(), Dialect::Redisson { .. }) {
        let found = "a hash without an expiry".to_owned();
        let advice =
            "each lock of Redisson has an expiry, so this is no lock; use another name or prefix";
        return foreign(key, found, advice);
    }
    if is_deadline(value) {
        return deadline(key, value);
    }
    let advice = format!(
        "if a service died between SETNX and EXPIRE, `Dialect::{}` sets the missing expiry; \
         otherwise {RENAME}",
        Dialect::SetnxExpire
    );
    foreign(key, "a value without an expiry".to_owned(), advice)
}

/// The key holds a deadline, and the dialect of the request expects an owner.
pub(crate) fn deadline(key: &LockKey, value: &str) -> LockError {
    let found = format!(
        "the deadline `{value}` of `Dialect::{}` where `Dialect::{}` expects an owner",
        Dialect::DeadlineGetset,
        key.dialect()
    );
    foreign(key, found, NEVER_TAKEN)
}

/// The key holds an owner, and the dialect of the request expects a deadline.
pub(crate) fn owner(key: &LockKey) -> LockError {
    let found = format!(
        "an owner where `Dialect::{}` expects a deadline",
        key.dialect()
    );
    foreign(key, found, NEVER_TAKEN)
}

/// The error for a value that no client of this library wrote, if an acquire refuses it. An acquire
/// waits for the end of any other value that has an expiry: it may be the lock of another library.
pub(crate) fn of_value(
    key: &LockKey,
    value: &str,
    remaining: Option<Duration>,
    server_ms: ServerMs,
) -> Option<LockError> {
    let is_ahead = || {
        let end = value.parse::<u64>();
        end.is_ok_and(|end| end > server_ms.as_u64())
    };
    match key.dialect() {
        Dialect::DeadlineGetset if is_deadline(value) => None,
        Dialect::DeadlineGetset => Some(owner(key)),
        _ if remaining.is_none() => Some(no_expiry(key, value)),
        Dialect::Native | Dialect::Redisson { .. } => None,
        _ => (is_deadline(value) && is_ahead()).then(|| deadline(key, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::key::LockName;

    fn key() -> LockKey {
        LockKey::new("lock:", &LockName::from("a")).unwrap()
    }

    #[test]
    fn advice_never_says_to_remove_a_lock_that_may_be_in_use() {
        for error in [
            of_type(&key(), "hash"),
            deadline(&key(), "1763700000000"),
            no_expiry(&key(), "1763700000000"),
        ] {
            let text = error.to_string();
            assert!(!text.contains("remove"), "{text}");
            assert!(text.contains("use another name or prefix"), "{text}");
        }
    }

    #[test]
    fn error_says_what_the_key_holds_and_the_advice() {
        assert_eq!(
            of_type(&key(), "list").to_string(),
            "key `lock:a` holds a list, and cannot be locked; remove the key, or use another name \
             or prefix"
        );
        assert_eq!(
            no_expiry(&key(), "me").to_string(),
            "key `lock:a` holds a value without an expiry, and cannot be locked; if a service \
             died between SETNX and EXPIRE, `Dialect::SetnxExpire` sets the missing expiry; otherwise remove the key, or use another name or prefix"
        );
    }

    #[test]
    fn error_of_an_owner_where_a_deadline_is_expected_says_so() {
        let in_deadlines = key().in_dialect(Dialect::DeadlineGetset);
        assert_eq!(
            owner(&in_deadlines).to_string(),
            "key `lock:a` holds an owner where `Dialect::DeadlineGetset` expects a \
             deadline, and cannot be locked; let all services that share this key use one \
             dialect, or use another name or prefix; the key is never taken over"
        );
    }
}
