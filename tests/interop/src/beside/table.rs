//! The table of the results, and the texts in it.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::bench::SLACK;

/// The error of the measured times: the process that measures may run late.
const EARLY: Duration = Duration::from_millis(50);

/// The results, in the order of the experiments.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<TableRow>);

#[derive(Debug)]
struct TableRow {
    scheme: &'static str,
    name: &'static str,
    /// Each version with its result.
    results: Vec<(&'static str, String)>,
}

impl Table {
    /// Adds a result to the row of its experiment.
    pub(super) fn add(
        &mut self,
        scheme: &'static str,
        name: &'static str,
        version: &'static str,
        result: String,
    ) {
        let mut rows = self.0.iter_mut();
        match rows.find(|row| row.scheme == scheme && row.name == name) {
            Some(row) => row.results.push((version, result)),
            None => self.0.push(TableRow {
                scheme,
                name,
                results: vec![(version, result)],
            }),
        }
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "| Experiment | Lock | Result |\n|---|---|---|")?;
        for TableRow {
            scheme,
            name,
            results,
        } in &self.0
        {
            let lock = if *scheme == crate::dialects::REDISSON {
                "RLock"
            } else {
                "RFencedLock"
            };
            let results = results
                .iter()
                .map(|(version, result)| format!("{version}: {result}"));
            let results: Vec<_> = results.collect();
            writeln!(f, "| {name} | {lock} | {} |", results.join("<br>"))?;
        }
        Ok(())
    }
}

/// Latencies of one kind.
#[derive(Debug, Default)]
pub(super) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the smallest latency that is not less than `percent` of all (nearest rank).
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or_default()
    }
}

impl Display for Latencies {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (half, most) = (self.percentile(50), self.percentile(99));
        write!(f, "{} / {} ms", tenths(half), tenths(most))
    }
}

/// Returns milliseconds with one digit.
fn tenths(duration: Duration) -> String {
    let tenths = (duration.as_micros() + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Returns whole milliseconds.
pub(super) fn ms(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

/// Checks that a waiter got the lock when the lease ended, of which `left` was left.
///
/// # Errors
/// Fails if it got the lock earlier or much later.
pub(super) fn check_wait(waited: Duration, left: Duration) -> Result<(), String> {
    let (waited_ms, left_ms) = (ms(waited), ms(left));
    if waited + EARLY < left {
        return Err(format!(
            "the waiter got the lock after {waited_ms}, with {left_ms} left"
        ));
    }
    if waited > left + SLACK {
        return Err(format!(
            "the waiter waited {waited_ms}, with {left_ms} left"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::REDISSON;

    fn latencies(micros: impl IntoIterator<Item = u64>) -> Latencies {
        Latencies(micros.into_iter().map(Duration::from_micros).collect())
    }

    #[test]
    fn percentiles_are_measured_values() {
        let latencies = latencies((1..=200).rev().map(|n| n * 1000));
        assert_eq!(latencies.percentile(50), Duration::from_millis(100));
        assert_eq!(latencies.percentile(99), Duration::from_millis(198));
        assert_eq!(latencies.percentile(100), Duration::from_millis(200));
        assert_eq!(latencies.to_string(), "100.0 / 198.0 ms");
    }

    #[test]
    fn few_latencies_have_percentiles() {
        assert_eq!(latencies([]).percentile(99), Duration::ZERO);
        assert_eq!(latencies([2049]).to_string(), "2.0 / 2.0 ms");
        assert_eq!(latencies([2050]).to_string(), "2.1 / 2.1 ms");
    }

    #[test]
    fn table_has_a_row_for_each_experiment() {
        let mut table = Table::default();
        table.add(REDISSON, "killed", "4.7.0", "a".to_owned());
        table.add(REDISSON, "stopped", "4.7.0", "b".to_owned());
        table.add(REDISSON, "killed", "3.20.0", "c".to_owned());
        assert_eq!(
            table.to_string(),
            "| Experiment | Lock | Result |\n|---|---|---|\n\
             | killed | RLock | 4.7.0: a<br>3.20.0: c |\n\
             | stopped | RLock | 4.7.0: b |\n"
        );
    }

    #[test]
    fn wait_has_to_end_with_the_lease() {
        let wait = |waited| {
            let waited = Duration::from_millis(waited);
            check_wait(waited, Duration::from_secs(2)).is_ok()
        };
        assert!(wait(1_990) && wait(2_300));
        assert!(!wait(1_900) && !wait(2_600));
    }
}
