//! What a bench makes of its measurements: medians, percentiles, and one line for each figure.
//!
//! All figures have one form: `<bench>.<figure> <value> <unit> (target <= x)`. The target may be
//! missing, or be a least value.

use std::time::Duration;

/// Returns the value in the middle, or the mean of the two middle values.
///
/// # Panics
///
/// Panics if there are no values.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        f64::midpoint(values[middle - 1], values[middle])
    } else {
        values[middle]
    }
}

/// Returns the smallest value that is not below this part of the values: `0.99` for the 99th
/// percentile.
///
/// # Panics
///
/// Panics if there are no values.
#[must_use]
pub fn percentile<T: Copy + Ord>(values: &[T], part: f64) -> T {
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

/// Returns `part` in percent of `whole`: processor time in percent of a core.
#[must_use]
pub fn percent(part: Duration, whole: Duration) -> f64 {
    ratio(part, whole) * 100.0
}

/// Returns a duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Returns a count as a number that can be divided.
#[must_use]
#[expect(
    clippy::cast_precision_loss,
    reason = "no bench counts to 2^53, not even bytes"
)]
pub fn number(count: u64) -> f64 {
    count as f64
}

/// Prints a figure without a target.
pub fn report(figure: &str, value: f64, unit: &str) {
    println!("{}", line(figure, value, unit, None));
}

/// Prints a figure, and the target that it must not exceed.
pub fn report_at_most(figure: &str, value: f64, unit: &str, target: f64) {
    println!("{}", line(figure, value, unit, Some(("<=", target))));
}

/// Prints a figure, and the target that it must reach.
pub fn report_at_least(figure: &str, value: f64, unit: &str, target: f64) {
    println!("{}", line(figure, value, unit, Some((">=", target))));
}

fn line(figure: &str, value: f64, unit: &str, target: Option<(&str, f64)>) -> String {
    let target = target.map(|(sign, target)| format!(" (target {sign} {target})"));
    format!("{figure} {value:.3} {unit}{}", target.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn percentile_is_a_measured_value() {
        let values: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&values, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&values, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&values[..1], 0.01), Duration::from_millis(100));
    }

    #[test]
    fn all_figures_have_one_form() {
        assert_eq!(line("a.b", 1.0, "x", None), "a.b 1.000 x");
        let with_target = line("a.b", 0.25, "us", Some(("<=", 1.15)));
        assert_eq!(with_target, "a.b 0.250 us (target <= 1.15)");
    }
}
