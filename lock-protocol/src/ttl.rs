//! Times to live, checked once and then stored as whole milliseconds.

use std::time::Duration;

/// The drift margin and a slow round trip would use up a shorter lease.
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// A holder that dies blocks its lock for the ttl, and a wait of more than a day is of no use.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Long enough that a lock survives a server's restart with a renewal every ten seconds. Short
/// enough that people can wait for it when a holder dies. Redisson's watchdog uses the same ttl.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// A time to live between [`MIN_TTL`] and [`MAX_TTL`], in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(u32);

impl Ttl {
    /// Returns `None` outside the range. Rounds up to a whole millisecond.
    pub fn new(ttl: Duration) -> Option<Self> {
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return None;
        }
        u32::try_from(whole_millis(ttl)).ok().map(Self)
    }

    pub fn as_millis(self) -> u64 {
        u64::from(self.0)
    }

    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.as_millis())
    }
}

/// Milliseconds, rounded up. Returns the largest number when they do not fit.
pub fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_range_includes_its_ends_and_parts_round_up() {
        assert_eq!(Ttl::new(MIN_TTL).map(Ttl::as_millis), Some(100));
        assert_eq!(Ttl::new(MAX_TTL).map(Ttl::as_duration), Some(MAX_TTL));
        assert_eq!(
            Ttl::new(Duration::from_nanos(100_000_001)).map(Ttl::as_millis),
            Some(101)
        );
        for outside in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_nanos(99_999_999),
            MAX_TTL + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            assert_eq!(Ttl::new(outside), None, "{outside:?}");
        }
    }
}
