//! The figures of the last minute: requests per second, and the waits for the lock.

use std::collections::VecDeque;

use serde::Serialize;

/// The points of a minute, four for each second.
pub(crate) const POINTS: usize = 240;

/// How many points one figure looks back: one second.
const WINDOW: usize = 4;

/// The figures at one time. A wait is missing when no request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Point {
    pub(crate) rate: u32,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
}

/// What happened between two points.
#[derive(Debug, Default)]
struct Interval {
    requests: u32,
    waits: Vec<f64>,
}

#[derive(Debug, Default)]
pub(crate) struct Plot {
    now: Interval,
    window: VecDeque<Interval>,
    points: VecDeque<Point>,
}

impl Plot {
    pub(crate) fn request(&mut self) {
        self.now.requests += 1;
    }

    pub(crate) fn wait(&mut self, ms: f64) {
        self.now.waits.push(ms);
    }

    /// Ends an interval of a quarter of a second, and adds a point.
    pub(crate) fn advance(&mut self) {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(std::mem::take(&mut self.now));
        let mut waits: Vec<_> = self.window.iter().flat_map(|i| i.waits.clone()).collect();
        waits.sort_unstable_by(f64::total_cmp);
        let point = Point {
            rate: self.window.iter().map(|interval| interval.requests).sum(),
            p50: percentile(&waits, 50),
            p99: percentile(&waits, 99),
        };
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// The points, oldest first. At most [`POINTS`].
    pub(crate) fn points(&self) -> impl DoubleEndedIterator<Item = Point> + ExactSizeIterator {
        self.points.iter().copied()
    }

    /// The newest point.
    pub(crate) fn last(&self) -> Point {
        self.points.back().copied().unwrap_or_default()
    }
}

/// Returns the smallest value that `percent` of the sorted values do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_look_back_one_second_and_end_after_a_minute() {
        let mut plot = Plot::default();
        for ms in 1..=100 {
            plot.request();
            plot.wait(f64::from(ms));
        }
        plot.advance();
        let full = Point {
            rate: 100,
            p50: Some(50.0),
            p99: Some(99.0),
        };
        assert_eq!(plot.last(), full);
        for _ in 1..WINDOW {
            plot.advance();
            assert_eq!(plot.last(), full);
        }
        plot.advance();
        assert_eq!(plot.last(), Point::default());
        for _ in 0..POINTS {
            plot.advance();
        }
        assert_eq!(plot.points().len(), POINTS);
        assert!(plot.points().all(|point| point == Point::default()));
    }

    #[test]
    fn one_value_is_every_percentile() {
        assert_eq!(percentile(&[7.0], 50), Some(7.0));
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
