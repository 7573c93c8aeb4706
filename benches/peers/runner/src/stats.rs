//! Medians and percentiles.

/// Returns the value in the middle, or the mean of the two middle values. None without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[middle - 1], upper)
    } else {
        upper
    })
}

/// Returns the smallest value that at least `percent` of the values do not exceed. None without values.
pub(crate) fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Returns the median of the ratios of adjacent values, which varies less than the ratio of the medians.
pub(crate) fn ratio(base: &[f64], compared: &[f64]) -> Option<f64> {
    let ratios = base
        .iter()
        .zip(compared)
        .map(|(base, compared)| compared / base);
    median(&ratios.collect::<Vec<_>>())
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::{median, percentile, ratio};

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
    }

    #[test]
    fn percentile_is_one_of_the_values() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99), Some(99.0));
        assert_eq!(percentile(&hundred, 100), Some(100.0));
        assert_eq!(percentile(&hundred, 50), Some(50.0));
        assert_eq!(percentile(&[7.0, 5.0], 99), Some(7.0));
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn ratio_compares_adjacent_values() {
        // The machine became twice as slow after the first block.
        assert_eq!(ratio(&[10.0, 20.0, 20.0], &[15.0, 30.0, 30.0]), Some(1.5));
        assert_eq!(ratio(&[], &[]), None);
    }
}
