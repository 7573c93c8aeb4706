//! Percentiles, and the lines that a bench prints.

use std::time::Duration;

/// Returns the smallest value that is not below this part of the values: `0.99` for the 99th
/// percentile.
///
/// # Panics
///
/// Panics if there are no values.
#[must_use]
pub fn percentile(values: &[Duration], part: f64) -> Duration {
    let mut values = values.to_vec();
    values.sort_unstable();
    let len = u32::try_from(values.len()).expect("a bench has few values");
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is between zero and the number of values"
    )]
    let rank = (f64::from(len) * part).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

/// Returns the number of times that `base` fits into `value`.
#[must_use]
pub fn ratio(value: Duration, base: Duration) -> f64 {
    value.as_secs_f64() / base.as_secs_f64()
}

/// Returns a duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Prints a relative figure without a target.
pub fn report_relative(figure: &str, value: f64, unit: &str) {
    println!("{figure} {value:.2} {unit}");
}

/// Prints a figure and its target.
pub fn report_target(figure: &str, value: f64, unit: &str, target: f64) {
    println!("{figure} {value:.3} {unit} (target <= {target})");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_a_measured_value() {
        let values: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&values, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&values, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&values[..1], 0.01), Duration::from_millis(100));
    }
}
