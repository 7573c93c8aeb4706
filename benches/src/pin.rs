//! Keeps a bench and its server on one core.

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
