//! Functions that the benches share.

pub mod allocations;
pub mod command_stats;
pub mod contention;
pub mod decay;
pub mod figures;
pub mod held;
pub mod operation_cost;
pub mod pairs;
pub mod process;
pub mod raw;
pub mod raw_handover;
pub mod round_trip;
pub mod server_cost;
pub mod server_time;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Set in the environment of a process that runs on one core.
const PINNED: &str = "LOCK_BENCH_PINNED";

/// Restarts this process and its children on one core, if `taskset` is installed.
pub fn pin_to_one_core() {
    if std::env::var_os(PINNED).is_some() {
        return;
    }
    let Some((program, core)) = std::env::current_exe().ok().zip(a_core()) else {
        eprintln!("not pinned to one core: cannot read the cores of this process");
        return;
    };
    let mut arguments: Vec<OsString> = vec!["-c".into(), core.into(), program.into()];
    arguments.extend(std::env::args_os().skip(1));
    // Returns only when it fails.
    let error = Command::new("taskset")
        .args(arguments)
        .env(PINNED, "1")
        .exec();
    eprintln!("not pinned to one core: cannot run `taskset`: {error}");
}

/// Returns the last core that this process may use. Systems run their own work on the first one.
fn a_core() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let last = allowed.trim().rsplit([',', '-']).next()?;
    Some(last.to_owned())
}

/// Returns whether the bench is to take a few seconds only, for the guard against decay: `cargo bench
/// -p benches --bench <name> -- --short`.
#[must_use]
pub fn is_short() -> bool {
    std::env::args().any(|argument| argument == "--short")
}

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

/// Prints a figure.
pub fn report(figure: &str, value: f64, unit: &str) {
    println!("{figure} {value:.2} {unit}");
}

/// Prints a figure, and the target that it must not exceed.
pub fn report_at_most(figure: &str, value: f64, unit: &str, target: f64) {
    println!("{figure} {value:.2} {unit} (target <= {target})");
}

/// Prints a figure, and the target that it must reach.
pub fn report_at_least(figure: &str, value: f64, unit: &str, target: f64) {
    println!("{figure} {value:.3} {unit} (target >= {target})");
}

/// Prints a ratio and its target.
pub fn report_ratio(figure: &str, value: f64, target: f64) {
    println!("{figure} {value:.3} x (target <= {target})");
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
    }
}
