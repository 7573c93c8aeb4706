//! Chance that can be repeated: the seed is in the report.

use std::time::Duration;

/// A generator (splitmix64, G. Steele et al. 2014) whose numbers follow from its seed alone.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another generator that shares nothing with this one from now on.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.number())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("usize fits");
        usize::try_from(self.number() % limit).expect("less than a usize")
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of them.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A time from `from` to `to`, both in milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.number() % ((to - from) * 1000 + 1))
    }

    /// Puts them in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// At least one and at most `most` of the numbers below `of`.
    pub fn some(&mut self, of: usize, most: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        self.shuffle(&mut all);
        all.truncate(1 + self.below(most));
        all
    }
}
