//! What stands in a key that cannot be locked, and what to do about it.

use crate::error::LockError;
use crate::protocol::dialect::Dialect;
use crate::protocol::key::LockKey;
use crate::protocol::wire::{MAX_LABEL, tidy};

const RENAME: &str = "remove it, or use another name or prefix";
const NEVER_TAKEN: &str = "let all who share this key lock it in one dialect, or use another \
                           name or prefix; it is never taken over";

fn foreign(key: &LockKey, found: String, advice: impl Into<String>) -> LockError {
    LockError::ForeignKey {
        key: key.text(),
        found: found.into(),
        advice: advice.into().into(),
    }
}

/// The key is of another type than a string.
pub(crate) fn of_type(key: &LockKey, kind: &str) -> LockError {
    if kind == "hash" {
        // It may well be a lock, and in use.
        let found = "a hash, as Redisson's locks are".to_owned();
        let advice = "Redisson's locks exclude nobody but Redisson: use another name or prefix";
        return foreign(key, found, advice);
    }
    foreign(key, format!("a {}", tidy(kind, MAX_LABEL)), RENAME)
}

/// A companion key of a native lock is of another type than it has to be.
#[cfg(feature = "redis")]
pub(crate) fn companion(key: &LockKey) -> LockError {
    let found = "a companion key of another type (its queue `:q` or counter `:f`)";
    foreign(key, found.to_owned(), RENAME)
}

/// The key has no expiry, for longer than those who set it in a second command need.
pub(crate) fn no_expiry(key: &LockKey, value: &str) -> LockError {
    if is_deadline(value) {
        return deadline(key, value);
    }
    let advice = format!(
        "if it was left by a service that died between SETNX and EXPIRE, `Dialect::{}` gives it \
         an expiry; else {RENAME}",
        Dialect::SetnxExpire
    );
    let found = format!("the value `{value}` without an expiry");
    foreign(key, found, advice)
}

/// A deadline where an owner is expected.
pub(crate) fn deadline(key: &LockKey, value: &str) -> LockError {
    let found = format!(
        "the deadline `{value}` of `Dialect::{}` where `Dialect::{}` expects an owner",
        Dialect::DeadlineGetset,
        key.dialect()
    );
    foreign(key, found, NEVER_TAKEN)
}

/// An owner where a deadline is expected.
#[cfg(feature = "redis")]
pub(crate) fn owner(key: &LockKey, value: &str) -> LockError {
    let found = format!(
        "the owner `{value}` where `Dialect::{}` expects a deadline",
        key.dialect()
    );
    foreign(key, found, NEVER_TAKEN)
}

/// Whether a value reads as milliseconds since the epoch, in the years 2001 to 2286: no other
/// number of that length is a likely owner.
pub(crate) fn is_deadline(value: &str) -> bool {
    value.len() == 13 && value.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::key::LockName;

    fn key() -> LockKey {
        LockKey::new("lock:", &LockName::from("a")).unwrap()
    }

    #[test]
    fn milliseconds_since_the_epoch_are_deadlines() {
        assert!(is_deadline("1763700000000"));
        for owner in ["", "1763700000", "17637000000000", "176370000000x", "lk1:1"] {
            assert!(!is_deadline(owner), "{owner}");
        }
    }

    #[test]
    fn a_live_lock_of_others_is_never_to_be_removed() {
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
    fn each_says_what_was_seen_and_what_to_do() {
        assert_eq!(
            of_type(&key(), "list").to_string(),
            "key `lock:a` holds a list, which is no lock for us; remove it, or use another name \
             or prefix"
        );
        assert_eq!(
            no_expiry(&key(), "me").to_string(),
            "key `lock:a` holds the value `me` without an expiry, which is no lock for us; if it \
             was left by a service that died between SETNX and EXPIRE, `Dialect::SetnxExpire` \
             gives it an expiry; else remove it, or use another name or prefix"
        );
        let in_deadlines = key().in_dialect(Dialect::DeadlineGetset);
        assert_eq!(
            owner(&in_deadlines, "me").to_string(),
            "key `lock:a` holds the owner `me` where `Dialect::DeadlineGetset` expects a \
             deadline, which is no lock for us; let all who share this key lock it in one \
             dialect, or use another name or prefix; it is never taken over"
        );
    }
}
