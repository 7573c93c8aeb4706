//! Backoff and jitter.

use std::time::Duration;
use uuid::Uuid;

/// A small generator of jitter (splitmix64, G. Steele et al. 2014). Never used for owner ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Jitter(
    /// The state of the generator; `None` for the one that always returns zero.
    Option<u64>,
);

impl Jitter {
    pub fn from_os() -> Self {
        Self::seeded(Uuid::new_v4().as_u64_pair().0)
    }

    pub fn seeded(seed: u64) -> Self {
        Self(Some(seed))
    }

    /// A generator without randomness. The model has no states that differ only in their jitter.
    #[cfg(test)]
    pub fn zero() -> Self {
        Self(None)
    }

    fn next(&mut self) -> u64 {
        let Some(state) = &mut self.0 else {
            return 0;
        };
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Makes another generator with other numbers than this one.
    pub fn fork(&mut self) -> Self {
        let has_state = self.0.is_some();
        Self(has_state.then(|| self.next()))
    }

    /// A random duration shorter than `span`.
    pub fn anywhere_in(&mut self, span: Duration) -> Duration {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.next() % nanos.max(1))
    }

    /// `span`, or up to a quarter less, so that many waiters do not poll in step.
    pub(crate) fn shorten(&mut self, span: Duration) -> Duration {
        span.saturating_sub(self.anywhere_in(span / 4))
    }
}

/// Pauses between attempts. They double up to a longest pause, with jitter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
    jitter: Jitter,
}

impl Backoff {
    /// The first pause after a failure of the server. A restarted server is back after a few of these
    /// pauses, and the first retry must not wait long.
    const FIRST: Duration = Duration::from_millis(10);
    /// Long enough to relieve a struggling server, and short compared to any useful wait.
    const LAST: Duration = Duration::from_millis(500);

    pub fn new(jitter: Jitter) -> Self {
        Self::between(Self::FIRST, Self::LAST, jitter)
    }

    pub fn between(first: Duration, longest: Duration, jitter: Jitter) -> Self {
        Self {
            first,
            next: first,
            longest,
            jitter,
        }
    }

    /// The longest pause after `tries` attempts, for callers that keep no [`Backoff`].
    pub fn after(tries: u32) -> Duration {
        let doubled = 1_u32
            .checked_shl(tries.saturating_sub(1))
            .unwrap_or(u32::MAX);
        Self::FIRST.saturating_mul(doubled).min(Self::LAST)
    }

    pub fn pause(&mut self) -> Duration {
        let pause = self.jitter.shorten(self.next);
        self.next = self.next.saturating_mul(2).min(self.longest);
        pause
    }

    pub fn longest(&self) -> Duration {
        self.longest
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_subtracts_at_most_a_quarter() {
        let mut jitter = Jitter::seeded(7);
        let span = Duration::from_millis(100);
        let drawn: Vec<_> = (0..1000).map(|_| jitter.shorten(span)).collect();
        assert!(drawn.iter().all(|d| *d <= span && *d > span * 3 / 4));
        assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(jitter.shorten(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn backoff_doubles_up_to_half_a_second_and_resets() {
        let mut backoff = Backoff::new(Jitter::seeded(1));
        let pauses: Vec<_> = (0..10).map(|_| backoff.pause()).collect();
        assert!(pauses[0] <= Duration::from_millis(10));
        assert!(pauses[9] <= Duration::from_millis(500) && pauses[9] > Duration::from_millis(375));
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(10));
        let counted = [0, 1, 2, 6, 7, 32, u32::MAX].map(Backoff::after);
        assert_eq!(
            counted.map(|pause| pause.as_millis()),
            [10, 10, 20, 320, 500, 500, 500]
        );
    }

    #[test]
    fn backoff_with_the_longest_durations_does_not_overflow() {
        let mut backoff = Backoff::between(Duration::MAX / 8, Duration::MAX, Jitter::seeded(1));
        for _ in 0..10 {
            assert!(backoff.pause() > Duration::MAX / 16);
        }
    }
}
