//! The durations and the kind of an annotated function, and the checks of its constants.

use std::time::Duration;

use crate::request::{ByName, LONGEST_PERIOD, LockRequest, SHORTEST_PERIOD};
use lock_protocol::kind::{Kind, MAX_PERMITS, MAX_WEIGHT};
use lock_protocol::renew::{MIN_RENEWAL, Renew};
use lock_protocol::ttl::{MAX_TTL, MIN_TTL};

/// The durations and the kind of one annotated function. The attribute writes the given ones, and takes the
/// others from [`DEFAULT`](Self::DEFAULT).
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `ttl = ..`
    pub ttl: Option<Duration>,
    /// `wait = ..`
    pub wait: Option<Duration>,
    /// `outage_wait = ..`
    pub outage_wait: Option<Duration>,
    /// `renew = ..`
    pub renew: Renew,
    /// `max_hold = ..`
    pub max_hold: Option<Duration>,
    /// `min_hold = ..`
    pub min_hold: Option<Duration>,
    /// `once_per = ..`
    pub once_per: Option<Duration>,
    /// `mode = ..`, `permits = ..` and `weight = ..`
    pub kind: Kind,
    /// `max_queue = ..`
    pub max_queue: Option<u32>,
    /// `on_contended = ..`
    pub on_contended: OnContended,
}

/// What an annotated function does when another holder has the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnContended {
    /// It returns an error, or calls a handler.
    #[default]
    Return,
    /// It skips the body.
    Skip,
}

impl Options {
    /// Leaves every option to the manager's defaults.
    pub const DEFAULT: Self = Self {
        ttl: None,
        wait: None,
        outage_wait: None,
        renew: Renew::Auto,
        max_hold: None,
        min_hold: None,
        once_per: None,
        kind: Kind::Exclusive,
        max_queue: None,
        on_contended: OnContended::Return,
    };

    /// Sets the `wait` of a call that has none. A call that skips makes one attempt, in place of the manager's
    /// default.
    pub(super) fn with_default_wait(self) -> Self {
        let default = (self.on_contended == OnContended::Skip).then_some(Duration::ZERO);
        Self {
            wait: self.wait.or(default),
            ..self
        }
    }

    pub(super) fn apply<T: ByName>(self, mut request: LockRequest<T>) -> LockRequest<T> {
        request = request.renew(self.renew).kind(self.kind);
        if let Some(ttl) = self.ttl {
            request = request.ttl(ttl);
        }
        if let Some(wait) = self.wait {
            request = request.wait(wait);
        }
        if let Some(longest) = self.outage_wait {
            request = request.outage_wait(longest);
        }
        if let Some(longest) = self.max_hold {
            request = request.max_hold(longest);
        }
        if let Some(shortest) = self.min_hold {
            request = request.min_hold(shortest);
        }
        if let Some(waiters) = self.max_queue {
            request = request.max_queue(waiters);
        }
        if let Some(period) = self.once_per {
            request = request.once_per(period);
        }
        request
    }
}

/// Takes the value of `dynamic(..)`. The acquire checks it.
#[must_use]
pub const fn dynamic(value: Duration) -> Duration {
    value
}

/// Checks a constant `ttl` by the limits that the attribute has for literals.
///
/// # Panics
///
/// When the value is out of its limits. It runs only at compile time.
#[must_use]
#[track_caller]
pub const fn checked_ttl(ttl: Duration) -> Duration {
    // In nanoseconds, because a part of a millisecond counts, too.
    assert!(
        ttl.as_nanos() >= MIN_TTL.as_nanos(),
        "`ttl` must be at least 100 ms"
    );
    assert!(
        ttl.as_nanos() <= MAX_TTL.as_nanos(),
        "`ttl` must be at most 24 h"
    );
    ttl
}

/// Checks a constant `renew` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_renew(every: Duration, ttl: Option<Duration>) -> Duration {
    assert!(
        every.as_nanos() >= MIN_RENEWAL.as_nanos(),
        "`renew` must be at least 10 ms"
    );
    assert!(
        every.as_nanos() <= MAX_TTL.as_nanos() / 2,
        "`renew` must be at most 12 h, half of the longest `ttl`"
    );
    if let Some(ttl) = ttl {
        assert!(
            every.as_nanos() <= ttl.as_nanos() / 2,
            "`renew` must be at most half of `ttl`"
        );
    }
    every
}

/// Checks a constant `max_hold` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_max_hold(longest: Duration, ttl: Option<Duration>) -> Duration {
    assert!(
        longest.as_nanos() > MIN_TTL.as_nanos(),
        "`max_hold` must be longer than 100 ms, the shortest `ttl`"
    );
    if let Some(ttl) = ttl {
        assert!(
            longest.as_nanos() > ttl.as_nanos(),
            "`max_hold` must be longer than `ttl`"
        );
    }
    longest
}

/// Checks a constant `min_hold` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_min_hold(shortest: Duration, ttl: Option<Duration>) -> Duration {
    assert!(
        shortest.as_nanos() < MAX_TTL.as_nanos(),
        "`min_hold` must be shorter than 24 h, the longest `ttl`"
    );
    if let Some(ttl) = ttl {
        assert!(
            shortest.as_nanos() < ttl.as_nanos(),
            "`min_hold` must be shorter than `ttl`"
        );
    }
    shortest
}

/// Checks a constant `once_per` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_once_per(period: Duration) -> Duration {
    assert!(
        period.as_nanos() >= SHORTEST_PERIOD.as_nanos(),
        "`once_per` must be at least 100 ms"
    );
    assert!(
        period.as_nanos() <= LONGEST_PERIOD.as_nanos(),
        "`once_per` must be at most 366 days"
    );
    period
}

/// Checks constant `permits` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_permits(permits: u32) -> u32 {
    assert!(permits >= 1, "`permits` must be at least 1");
    assert!(permits <= MAX_PERMITS, "`permits` must be at most 10000");
    permits
}

/// Checks a constant `weight` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_weight(weight: u32, permits: u32) -> u32 {
    assert!(weight >= 1, "`weight` must be at least 1");
    assert!(weight <= MAX_WEIGHT, "`weight` must be at most 256");
    assert!(weight <= permits, "`weight` must be at most `permits`");
    weight
}

/// Checks a constant `max_queue` by the limits that the attribute has for literals.
///
/// # Panics
///
/// See [`checked_ttl`].
#[must_use]
#[track_caller]
pub const fn checked_max_queue(waiters: u32) -> u32 {
    assert!(
        waiters >= 1,
        "`max_queue` must be at least 1; to wait for nobody, write `wait = \"0s\"`"
    );
    waiters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_numbers_have_the_limits_of_literals() {
        for permits in [1, MAX_PERMITS] {
            assert_eq!(checked_permits(permits), permits);
        }
        assert_eq!(checked_weight(MAX_WEIGHT, MAX_PERMITS), MAX_WEIGHT);
        assert_eq!(checked_max_queue(1), 1);
        assert!(std::panic::catch_unwind(|| checked_max_queue(0)).is_err());
        for permits in [0, MAX_PERMITS + 1] {
            assert!(std::panic::catch_unwind(|| checked_permits(permits)).is_err());
        }
        for (weight, permits) in [(0, 4), (5, 4), (MAX_WEIGHT + 1, MAX_PERMITS)] {
            assert!(std::panic::catch_unwind(|| checked_weight(weight, permits)).is_err());
        }
    }

    #[test]
    fn constants_have_the_limits_of_literals() {
        for ttl in [Duration::from_millis(100), Duration::from_secs(24 * 3600)] {
            assert_eq!(checked_ttl(ttl), ttl);
        }
        let panics = |check: fn(Duration) -> Duration, value| {
            std::panic::catch_unwind(|| check(value)).is_err()
        };
        for period in [SHORTEST_PERIOD, LONGEST_PERIOD] {
            assert_eq!(checked_once_per(period), period);
        }
        let nano = Duration::from_nanos(1);
        assert!(panics(checked_once_per, Duration::from_micros(99_999)));
        assert!(panics(checked_once_per, LONGEST_PERIOD + nano));
        assert!(panics(checked_ttl, Duration::from_micros(99_999)));
        assert!(panics(checked_ttl, Duration::new(24 * 3600, 1)));
    }

    #[test]
    fn constants_are_checked_against_the_ttl() {
        let second = Duration::from_secs(1);
        let half = second / 2;
        for ttl in [None, Some(second)] {
            assert_eq!(checked_renew(half, ttl), half);
            assert_eq!(checked_min_hold(half, ttl), half);
            assert_eq!(checked_max_hold(2 * second, ttl), 2 * second);
        }
        let panics = |check: fn(Duration, Option<Duration>) -> Duration, value| {
            std::panic::catch_unwind(|| check(value, Some(second))).is_err()
        };
        assert!(panics(checked_renew, half + Duration::from_nanos(1)));
        assert!(panics(checked_renew, Duration::from_millis(9)));
        assert!(panics(checked_min_hold, second));
        assert!(panics(checked_max_hold, second));
    }

    #[test]
    fn constants_that_no_ttl_allows_are_rejected_without_a_ttl() {
        let panics = |check: fn(Duration, Option<Duration>) -> Duration, value| {
            std::panic::catch_unwind(|| check(value, None)).is_err()
        };
        assert!(panics(checked_max_hold, MIN_TTL));
        assert!(!panics(checked_max_hold, MIN_TTL + Duration::from_nanos(1)));
        assert!(panics(checked_min_hold, MAX_TTL));
        assert!(!panics(
            checked_min_hold,
            Duration::from_secs(24 * 3600 - 1)
        ));
        assert!(panics(checked_renew, MAX_TTL / 2 + Duration::from_nanos(1)));
        assert!(!panics(checked_renew, MAX_TTL / 2));
    }
}
