//! How long a client should wait before it calls again.

use std::time::Duration;

use crate::error::{Holder, HolderState, LockError};

const SECOND: Duration = Duration::from_secs(1);
/// A client that waits longer does not see that the lock became free.
const LONGEST: Duration = Duration::from_secs(30);
/// The age of a foreign lock is not known. Its lease says how long it may last, not how long it will.
const LONGEST_FOREIGN: Duration = Duration::from_secs(5);

/// Returns the time after which the lock of this error is probably free, in whole seconds.
///
/// A holder that has had the lock for some time ends after about that time again. It never keeps the
/// lock longer than its lease if it is dead.
pub(super) fn until_free(error: &LockError) -> Duration {
    error.holder().map_or(SECOND, of_holder)
}

/// Returns the time after which a full queue has probably let its next waiter go, in whole seconds.
pub(super) fn until_a_place(error: &LockError) -> Duration {
    match error {
        LockError::QueueFull {
            pace: Some(pace), ..
        } => whole_seconds(*pace).clamp(SECOND, LONGEST),
        _ => until_free(error),
    }
}

fn of_holder(holder: &Holder) -> Duration {
    if holder.state != HolderState::Holding {
        // No release can free the lock before its lease ends.
        return whole_seconds(holder.remaining.unwrap_or(SECOND)).clamp(SECOND, LONGEST);
    }
    let (time, longest) = match (holder.held_for, holder.remaining) {
        (Some(held), Some(remaining)) => (held.min(remaining), LONGEST),
        (Some(held), None) => (held, LONGEST),
        (None, Some(remaining)) => (remaining, LONGEST_FOREIGN),
        (None, None) => (SECOND, SECOND),
    };
    whole_seconds(time).clamp(SECOND, longest)
}

/// Rounds up, because a client that calls too early calls in vain.
pub(super) fn whole_seconds(time: Duration) -> Duration {
    let more = u64::from(time.subsec_nanos() > 0);
    Duration::from_secs(time.as_secs().saturating_add(more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::kind::Kind;

    #[test]
    fn estimate_is_the_age_of_the_holder_within_its_lease() {
        let ms = Duration::from_millis;
        let estimate = |held_for: Option<u64>, remaining: Option<u64>| {
            let holder = Holder {
                held_for: held_for.map(ms),
                ..Holder::foreign(remaining.map(ms))
            };
            of_holder(&holder)
        };
        for (held_for, remaining, seconds) in [
            // A holder that has just begun.
            (Some(0), Some(30_000), 1),
            (Some(50), Some(30_000), 1),
            // Rounded up.
            (Some(1_001), Some(30_000), 2),
            (Some(7_000), Some(30_000), 7),
            // A holder that may be dead.
            (Some(25_000), Some(4_200), 5),
            (Some(25_000), Some(0), 1),
            // A long job.
            (Some(3_600_000), Some(600_000), 30),
            (Some(3_600_000), None, 30),
            // A lock of another library.
            (None, Some(300), 1),
            (None, Some(3_100), 4),
            (None, Some(60_000), 5),
            (None, None, 1),
        ] {
            let text = format!("held for {held_for:?}, {remaining:?} left");
            let expected = Duration::from_secs(seconds);
            assert_eq!(estimate(held_for, remaining), expected, "{text}");
        }
        assert_eq!(until_free(&LockError::ShuttingDown), SECOND);
    }

    #[test]
    fn full_queue_has_its_pace_or_else_its_holder() {
        let full = |pace| LockError::QueueFull {
            key: "k".into(),
            position: 9,
            holder: Some(Box::new(Holder::foreign(Some(Duration::from_secs(3))))),
            requested: Kind::Exclusive,
            pace,
        };
        let ms = Duration::from_millis;
        for (pace, seconds) in [
            (Some(ms(20)), 1),
            (Some(ms(6_001)), 7),
            (Some(ms(600_000)), 30),
            (None, 3),
        ] {
            assert_eq!(until_a_place(&full(pace)), Duration::from_secs(seconds));
        }
    }

    #[test]
    fn longest_time_is_rounded_without_overflow() {
        assert_eq!(whole_seconds(Duration::MAX), Duration::from_secs(u64::MAX));
    }
}
