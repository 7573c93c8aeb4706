//! What stands in the key of a lock that somebody else may have, and what follows from it.

use std::time::Duration;

use crate::backend::{AcquireOutcome, ObservedHolder};
use crate::error::LockError;
use crate::error::foreign_key;
use crate::protocol::clock::{Moment, ServerMs};
use crate::protocol::dialect::CLOCK_TOLERANCE;
use crate::protocol::key::LockKey;
use crate::protocol::lock_state::RawHolder;
use crate::protocol::poll_schedule::HolderExpiry;

/// What a look at the key found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundValue {
    /// No key: it was free a moment later.
    Nothing,
    Value {
        text: String,
        /// `None` for a key without expiry.
        remaining: Option<Duration>,
    },
    /// A key of another type than a string.
    Type(String),
}

impl FoundValue {
    pub(super) fn by_script(holder: RawHolder) -> Self {
        Self::Value {
            remaining: holder.remaining_ms.map(Duration::from_millis),
            text: holder.value,
        }
    }

    /// Whether that very owner stands there.
    pub(super) fn is_by(&self, owner: &str) -> bool {
        matches!(self, Self::Value { text, .. } if text == owner)
    }

    /// Until the key goes; `None` where it does not, or where there is none.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Value { remaining, .. } => *remaining,
            _ => None,
        }
    }
}

/// What it means to one who expects an owner there.
pub(super) fn where_an_owner_belongs(
    key: &LockKey,
    found: &FoundValue,
    server_ms: ServerMs,
    now: Moment,
) -> Result<AcquireOutcome, LockError> {
    if let FoundValue::Value { text, remaining } = found {
        // An owner may be a time: the one at which it asked, which has passed.
        let is_ahead = text
            .parse::<u64>()
            .is_ok_and(|ends| ends > server_ms.as_u64());
        if foreign_key::is_deadline(text) && (is_ahead || remaining.is_none()) {
            return Err(foreign_key::deadline(key, text));
        }
    }
    held_by_another(key, found, now)
}

/// What it means to one who expects a deadline there. Native locks and those of this library have
/// an expiry that is to be respected; an owner of other clients is not told from rubbish.
pub(super) fn where_a_deadline_belongs(
    key: &LockKey,
    found: &FoundValue,
    server_ms: ServerMs,
    now: Moment,
) -> Result<AcquireOutcome, LockError> {
    let mut asked = held_by_another(key, found, now)?;
    let FoundValue::Value { text, remaining } = found else {
        return Ok(asked);
    };
    if is_a_deadline_with(text, *remaining, server_ms) {
        if let AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::Polled { ends },
            ..
        } = &mut asked
        {
            // Taken over only then: its holder's clock may be behind.
            *ends = ends.plus(CLOCK_TOLERANCE);
        }
        return Ok(asked);
    }
    let seen = ObservedHolder::by(text, *remaining);
    let ours = seen.is_some_and(|seen| seen.owner_id.is_some());
    if !ours || remaining.is_none() {
        return Err(foreign_key::owner(
            key,
            &crate::protocol::wire::tidy_label(text),
        ));
    }
    Ok(asked)
}

/// An owner may be a time as well: then its key outlives that time by more than deadlines do.
fn is_a_deadline_with(text: &str, remaining: Option<Duration>, server_ms: ServerMs) -> bool {
    let is_over = text
        .parse::<u64>()
        .is_ok_and(|ends| ends < server_ms.as_u64());
    let goes_with_it = remaining.is_none_or(|remaining| remaining <= CLOCK_TOLERANCE);
    foreign_key::is_deadline(text) && (!is_over || goes_with_it)
}

fn held_by_another(
    key: &LockKey,
    found: &FoundValue,
    now: Moment,
) -> Result<AcquireOutcome, LockError> {
    let (holder_expiry, holder) = match found {
        FoundValue::Nothing => (HolderExpiry::Polled { ends: now }, None),
        FoundValue::Type(kind) => return Err(foreign_key::of_type(key, kind)),
        FoundValue::Value { text, remaining } => {
            let holder_expiry =
                remaining.map_or(HolderExpiry::NoExpiry, |remaining| HolderExpiry::Polled {
                    ends: now.plus(remaining),
                });
            (holder_expiry, ObservedHolder::by(text, *remaining))
        }
    };
    Ok(AcquireOutcome::Busy {
        holder_expiry,
        holder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::dialect::{Dialect, ReleaseMethod};
    use crate::protocol::key::LockName;

    const SERVER_MS: ServerMs = ServerMs::new(1_763_700_000_000);
    const OURS: &str = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 web-1";
    const NATIVE: &str = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 12 99 web-1";

    fn value(text: &str, remaining_ms: Option<u64>) -> FoundValue {
        FoundValue::Value {
            text: text.to_owned(),
            remaining: remaining_ms.map(Duration::from_millis),
        }
    }

    fn key(dialect: Dialect) -> LockKey {
        let key = LockKey::new("", &LockName::from("k")).unwrap();
        key.in_dialect(dialect)
    }

    fn owners(found: &FoundValue) -> Result<AcquireOutcome, LockError> {
        let release = ReleaseMethod::Script;
        let key = key(Dialect::SetNxPx { release });
        where_an_owner_belongs(&key, found, SERVER_MS, Moment::from_millis(0))
    }

    fn deadlines(found: &FoundValue) -> Result<AcquireOutcome, LockError> {
        let key = key(Dialect::DeadlineGetset);
        where_a_deadline_belongs(&key, found, SERVER_MS, Moment::from_millis(0))
    }

    fn is_waited_for(asked: &Result<AcquireOutcome, LockError>) -> bool {
        matches!(
            asked,
            Ok(AcquireOutcome::Busy {
                holder_expiry: HolderExpiry::Polled { .. },
                ..
            })
        )
    }

    #[test]
    fn owners_wait_for_whoever_has_an_expiry() {
        for text in [OURS, NATIVE, "me", "1763699999999", "17", ""] {
            assert!(is_waited_for(&owners(&value(text, Some(5)))), "{text}");
        }
        assert!(is_waited_for(&owners(&FoundValue::Nothing)));
    }

    #[test]
    fn an_owner_without_expiry_is_about_to_get_one() {
        let asked = owners(&value("me", None)).unwrap();
        let AcquireOutcome::Busy {
            holder_expiry,
            holder,
        } = asked
        else {
            panic!("{asked:?}");
        };
        assert_eq!(holder_expiry, HolderExpiry::NoExpiry);
        assert_eq!(&*holder.unwrap().label, "me");
    }

    #[test]
    fn a_deadline_is_no_owner() {
        for (text, remaining) in [
            ("1763700000001", Some(5)),
            ("1763700000001", None),
            // Long past: its holder died, and nobody else may take it over.
            ("1563700000000", None),
        ] {
            let error = owners(&value(text, remaining)).unwrap_err();
            assert!(error.to_string().contains("expects an owner"), "{error}");
        }
    }

    #[test]
    fn deadlines_wait_for_deadlines_and_for_locks_of_this_library() {
        for (text, remaining) in [
            ("1763700000001", Some(1)),
            // It may be taken over in a moment.
            ("1763699999950", Some(50)),
            (OURS, Some(5)),
            (NATIVE, Some(5)),
        ] {
            assert!(is_waited_for(&deadlines(&value(text, remaining))), "{text}");
        }
    }

    #[test]
    fn an_owner_is_no_deadline() {
        for (text, remaining) in [
            ("me", Some(5)),
            ("me", None),
            (OURS, None),
            ("17", Some(5)),
            ("", None),
            ("1763699999950", Some(5_000)),
        ] {
            let error = deadlines(&value(text, remaining)).unwrap_err();
            assert!(error.to_string().contains("expects a deadline"), "{error}");
        }
    }

    #[test]
    fn other_types_are_nobody_s_lock() {
        for asked in [owners, deadlines] {
            let error = asked(&FoundValue::Type("hash".into())).unwrap_err();
            assert!(error.to_string().contains("Redisson"), "{error}");
        }
    }

    #[test]
    fn the_holder_is_named_as_it_calls_itself() {
        for (text, label, known) in [
            (OURS, "web-1", true),
            (NATIVE, "web-1", true),
            ("4e2a", "4e2a", false),
        ] {
            let asked = owners(&value(text, Some(5))).unwrap();
            let AcquireOutcome::Busy { holder, .. } = asked else {
                panic!("{asked:?}");
            };
            let holder = holder.unwrap();
            assert_eq!(&*holder.label, label);
            assert_eq!(holder.owner_id.is_some(), known);
        }
    }
}
