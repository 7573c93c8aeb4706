//! Repeatable random numbers: the report shows the seed.

use std::time::Duration;

/// A generator whose numbers depend only on its seed (splitmix64, G. Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns another generator that is independent of this one from now on.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.number())
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit).expect("a usize fits in 64 bits");
        usize::try_from(self.number() % limit).expect("the number is less than `limit`")
    }

    /// Returns true in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the items.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Returns a time from `from` to `to`, both in milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.number() % ((to - from) * 1000 + 1))
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Returns at least one and at most `most` of the numbers below `of`.
    pub fn some(&mut self, of: usize, most: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..of).collect();
        self.shuffle(&mut all);
        all.truncate(1 + self.below(most));
        all
    }
}
