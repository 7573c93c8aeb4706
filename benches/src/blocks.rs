//! Two operations that alternate in short blocks, so that other work on the machine affects both.

use std::time::Instant;

use crate::figures::{median, micros};

/// Long enough for the clock and the caches, and shorter than changes of the machine's speed.
const BLOCK: u32 = 100;
/// The first blocks fill caches and branch predictors.
const WARM_UP: usize = 20;

/// Measures two kinds of blocks in turn. The order changes, so that neither profits from its place.
pub async fn alternate(
    rounds: usize,
    mut base: impl AsyncFnMut() -> f64,
    mut compared: impl AsyncFnMut() -> f64,
) -> Series {
    let mut series = Series::default();
    for round in 0..WARM_UP + rounds {
        let times = if round % 2 == 0 {
            let first = base().await;
            (first, compared().await)
        } else {
            let first = compared().await;
            (base().await, first)
        };
        if round >= WARM_UP {
            series.0.push(times);
        }
    }
    series
}

/// The times of adjacent blocks, in microseconds for one operation.
#[derive(Default)]
pub struct Series(Vec<(f64, f64)>);

impl Series {
    /// Returns the median of the ratios of adjacent blocks, which varies less than the ratio of the
    /// medians.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(self.0.iter().map(|(base, compared)| compared / base))
    }

    /// Returns the median of the times of the first operation.
    #[must_use]
    pub fn base(&self) -> f64 {
        median(self.0.iter().map(|(base, _)| *base))
    }

    /// Returns the median of the times of the second operation.
    #[must_use]
    pub fn compared(&self) -> f64 {
        median(self.0.iter().map(|(_, compared)| *compared))
    }
}

/// Returns the time of one operation in microseconds.
pub async fn block(mut operation: impl AsyncFnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..BLOCK {
        operation().await;
    }
    micros(started.elapsed() / BLOCK)
}
