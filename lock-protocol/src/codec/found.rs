//! Interprets the value of a key that another holder may have locked, in the dialects of one key.

use std::time::Duration;

use crate::acquisition::{AcquireOutcome, ObservedHolder};
use crate::clock::{Moment, ServerMs};
use crate::dialect::CLOCK_TOLERANCE;
use crate::lock_state::RawHolder;
use crate::op::{ForeignValue, Refusal, RefusalKind};
use crate::poll_schedule::HolderExpiry;
use crate::wire::is_deadline;

/// The state of the key that an acquire found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FoundValue {
    /// The key has disappeared since the failed attempt.
    Nothing,
    Value {
        text: String,
        /// `None` for a key without an expiry.
        remaining: Option<Duration>,
    },
    /// The key has another type than a string.
    Type(String),
}

impl FoundValue {
    pub(super) fn from_script(holder: RawHolder) -> Self {
        Self::Value {
            remaining: holder.remaining_ms.map(Duration::from_millis),
            text: holder.value,
        }
    }

    /// Returns whether the value is exactly this owner.
    pub(super) fn is_by(&self, owner: &str) -> bool {
        matches!(self, Self::Value { text, .. } if text == owner)
    }

    /// Returns the time until the key expires; `None` without an expiry or without a key.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Value { remaining, .. } => *remaining,
            Self::Nothing | Self::Type(_) => None,
        }
    }
}

fn foreign(value: ForeignValue, found: &str) -> Refusal {
    Refusal::own(RefusalKind::Foreign(value), found)
}

/// Returns the outcome of an acquire that expects an owner in the key.
pub(super) fn expect_owner(
    found: &FoundValue,
    server_ms: ServerMs,
    now: Moment,
) -> Result<AcquireOutcome, Refusal> {
    if let FoundValue::Value { text, remaining } = found {
        // An owner may look like a deadline: a client may use its send time, which has passed.
        let is_ahead = text
            .parse::<u64>()
            .is_ok_and(|ends| ends > server_ms.as_u64());
        if is_deadline(text) && (is_ahead || remaining.is_none()) {
            return Err(foreign(ForeignValue::Deadline, text));
        }
    }
    held_by_another(found, now)
}

/// Returns the outcome of an acquire that expects a deadline in the key. A native lock, or another
/// lock of this library, has an expiry and is respected. An owner of another library cannot be
/// distinguished from an arbitrary value.
pub(super) fn expect_deadline(
    found: &FoundValue,
    server_ms: ServerMs,
    now: Moment,
) -> Result<AcquireOutcome, Refusal> {
    let mut outcome = held_by_another(found, now)?;
    let FoundValue::Value { text, remaining } = found else {
        return Ok(outcome);
    };
    if is_deadline_value(text, *remaining, server_ms) {
        if let AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::Polled { ends },
            ..
        } = &mut outcome
        {
            // The lock is taken over only then: the clock of its holder may be behind.
            *ends = ends.plus(CLOCK_TOLERANCE);
        }
        return Ok(outcome);
    }
    let holder = ObservedHolder::from_value(text, *remaining, None);
    let is_of_this_library = holder.is_some_and(|holder| holder.is_of_this_library());
    if !is_of_this_library || remaining.is_none() {
        return Err(foreign(ForeignValue::Owner, ""));
    }
    Ok(outcome)
}

/// Returns whether the value is a deadline. An owner may look like one; but its key then outlives
/// that time by more than the key of a deadline does.
fn is_deadline_value(text: &str, remaining: Option<Duration>, server_ms: ServerMs) -> bool {
    let has_passed = text
        .parse::<u64>()
        .is_ok_and(|ends| ends < server_ms.as_u64());
    let expires_with_it = remaining.is_none_or(|remaining| remaining <= CLOCK_TOLERANCE);
    is_deadline(text) && (!has_passed || expires_with_it)
}

/// Returns the outcome for a key that another holder has.
pub(super) fn held_by_another(found: &FoundValue, now: Moment) -> Result<AcquireOutcome, Refusal> {
    let (holder_expiry, holder) = match found {
        FoundValue::Nothing => (HolderExpiry::Polled { ends: now }, None),
        FoundValue::Type(kind) => return Err(foreign(ForeignValue::Type, kind)),
        FoundValue::Value { text, remaining } => {
            let holder_expiry =
                remaining.map_or(HolderExpiry::NoExpiry, |remaining| HolderExpiry::Polled {
                    ends: now.plus(remaining),
                });
            (
                holder_expiry,
                ObservedHolder::from_value(text, *remaining, None),
            )
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
    use crate::acquisition::FOREIGN_LABEL;

    const SERVER_MS: ServerMs = ServerMs::new(1_763_700_000_000);
    const PLAIN: &str = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 web-1";
    const NATIVE: &str = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 12 99 web-1";

    fn value(text: &str, remaining_ms: Option<u64>) -> FoundValue {
        FoundValue::Value {
            text: text.to_owned(),
            remaining: remaining_ms.map(Duration::from_millis),
        }
    }

    fn owners(found: &FoundValue) -> Result<AcquireOutcome, Refusal> {
        expect_owner(found, SERVER_MS, Moment::from_millis(0))
    }

    fn deadlines(found: &FoundValue) -> Result<AcquireOutcome, Refusal> {
        expect_deadline(found, SERVER_MS, Moment::from_millis(0))
    }

    fn is_waited_for(outcome: &Result<AcquireOutcome, Refusal>) -> bool {
        matches!(
            outcome,
            Ok(AcquireOutcome::Busy {
                holder_expiry: HolderExpiry::Polled { .. },
                ..
            })
        )
    }

    #[test]
    fn owner_dialects_wait_for_any_value_with_an_expiry() {
        for text in [PLAIN, NATIVE, "me", "1763699999999", "17", ""] {
            assert!(is_waited_for(&owners(&value(text, Some(5)))), "{text}");
        }
        assert!(is_waited_for(&owners(&FoundValue::Nothing)));
    }

    #[test]
    fn owner_without_expiry_is_about_to_get_one() {
        let outcome = owners(&value("me", None)).unwrap();
        let AcquireOutcome::Busy {
            holder_expiry,
            holder,
        } = outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(holder_expiry, HolderExpiry::NoExpiry);
        assert_eq!(&*holder.unwrap().label, FOREIGN_LABEL);
    }

    #[test]
    fn deadline_is_no_owner() {
        for (text, remaining) in [
            ("1763700000001", Some(5)),
            ("1763700000001", None),
            // Passed long ago: its holder died, and no other client may take the lock over.
            ("1563700000000", None),
        ] {
            let refusal = owners(&value(text, remaining)).unwrap_err();
            let expected = foreign(ForeignValue::Deadline, text);
            assert_eq!(refusal, expected);
        }
    }

    #[test]
    fn deadline_dialect_waits_for_deadlines_and_locks_of_this_library() {
        for (text, remaining) in [
            ("1763700000001", Some(1)),
            // The lock can be taken over in a moment.
            ("1763699999950", Some(50)),
            (PLAIN, Some(5)),
            (NATIVE, Some(5)),
        ] {
            assert!(is_waited_for(&deadlines(&value(text, remaining))), "{text}");
        }
    }

    #[test]
    fn owner_is_no_deadline() {
        for (text, remaining) in [
            ("me", Some(5)),
            ("me", None),
            (PLAIN, None),
            ("17", Some(5)),
            ("", None),
            ("1763699999950", Some(5_000)),
        ] {
            let refusal = deadlines(&value(text, remaining)).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Foreign(ForeignValue::Owner));
        }
    }

    #[test]
    fn key_of_another_type_is_refused() {
        for acquire in [owners, deadlines] {
            let refusal = acquire(&FoundValue::Type("hash".into())).unwrap_err();
            assert_eq!(refusal, foreign(ForeignValue::Type, "hash"));
        }
    }

    #[test]
    fn holder_is_named_by_its_label() {
        for (text, label, known) in [
            (PLAIN, "web-1", true),
            (NATIVE, "web-1", true),
            ("4e2a", FOREIGN_LABEL, false),
            ("1763700000000", "1763700000000", false),
        ] {
            let outcome = owners(&value(text, Some(5))).unwrap();
            let AcquireOutcome::Busy { holder, .. } = outcome else {
                panic!("{outcome:?}");
            };
            let holder = holder.unwrap();
            assert_eq!(&*holder.label, label);
            assert_eq!(holder.owner_id.is_some(), known);
        }
    }
}
