//! Back-off and jitter.

use std::time::Duration;
use uuid::Uuid;

/// A small generator of jitter (splitmix64, G. Steele et al. 2014). Never used for ownership.
#[derive(Clone, Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) fn from_os() -> Self {
        Self(Uuid::new_v4().as_u64_pair().0)
    }

    #[cfg(test)]
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `span`, or up to a quarter less, so that many who wait do not come back in step.
    pub(crate) fn shorten(&mut self, span: Duration) -> Duration {
        let quarter = u64::try_from(span.as_nanos() / 4).unwrap_or(u64::MAX);
        if quarter == 0 {
            return span;
        }
        span.saturating_sub(Duration::from_nanos(self.next() % quarter))
    }
}

/// Pauses between tries that doubles from 10 ms to half a second, with jitter.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    next: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// A server that restarts is back within a few of these; a first retry must not wait long.
    const FIRST: Duration = Duration::from_millis(10);
    /// Long enough to leave a struggling server alone, short against any useful wait.
    const LAST: Duration = Duration::from_millis(500);

    pub(crate) fn new(jitter: Jitter) -> Self {
        Self {
            next: Self::FIRST,
            jitter,
        }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.jitter.shorten(self.next);
        self.next = (self.next * 2).min(Self::LAST);
        pause
    }

    pub(crate) fn reset(&mut self) {
        self.next = Self::FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_takes_away_at_most_a_quarter() {
        let mut jitter = Jitter::seeded(7);
        let span = Duration::from_millis(100);
        let drawn: Vec<_> = (0..1000).map(|_| jitter.shorten(span)).collect();
        assert!(drawn.iter().all(|d| *d <= span && *d > span * 3 / 4));
        assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(jitter.shorten(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn back_off_doubles_up_to_half_a_second_and_starts_over() {
        let mut backoff = Backoff::new(Jitter::seeded(1));
        let pauses: Vec<_> = (0..10).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= Duration::from_millis(10));
        assert!(pauses[9] <= Duration::from_millis(500) && pauses[9] > Duration::from_millis(375));
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(10));
    }
}
