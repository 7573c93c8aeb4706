//! The peer programs: finding and starting them, and reading what they print.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_support::process::{Helper, Process};
use test_support::{Scratch, holds_within};

use crate::results::{About, Failure};

/// Bound on the start and the end of a program, beyond its own waits. A JVM starts within a second; a
/// busy machine needs much longer.
const MARGIN: Duration = Duration::from_secs(60);

/// Redirects stderr, and replaces itself with the program. So the process can be killed.
const START: &str = r#"exec 2>"$0"; exec "$@""#;

/// One peer program.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) name: String,
    file: PathBuf,
}

/// Returns the programs in a folder, sorted by name.
///
/// # Errors
///
/// Fails if the folder cannot be read or is empty.
pub fn programs_in(folder: &Path) -> Result<Vec<Program>, String> {
    let entries = fs::read_dir(folder);
    let entries = entries.map_err(|e| format!("cannot read {}: {e}", folder.display()))?;
    let mut programs = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        programs.push(Program {
            name,
            file: entry.path(),
        });
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    if programs.is_empty() {
        return Err(format!(
            "{} has no programs; run ./scripts/peers",
            folder.display()
        ));
    }
    Ok(programs)
}

/// The arguments of one start.
#[derive(Clone, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) scenario: &'static str,
    pub(crate) url: &'a str,
    pub(crate) key: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) flags: Vec<(&'static str, u64)>,
    /// The core on which the program runs. Defaults to all.
    pub(crate) core: Option<&'a str>,
}

impl Program {
    /// Starts the program.
    pub(crate) fn start(&self, start: &Start<'_>) -> Running {
        let scratch = Scratch::new();
        let mut helper = Helper::new("sh").arg("-c").arg(START);
        helper = helper.arg(scratch.path().join("stderr"));
        if let Some(core) = start.core {
            helper = helper.arg("taskset").arg("-c").arg(core);
        }
        helper = helper.arg(&self.file).arg(start.scenario);
        let millis = |time: Duration| time.as_millis().to_string();
        for (flag, value) in [
            ("--url", start.url.to_owned()),
            ("--key", start.key.to_owned()),
            ("--ttl-ms", millis(start.ttl)),
            ("--wait-ms", millis(start.wait)),
        ] {
            helper = helper.arg(flag).arg(value);
        }
        for (flag, value) in &start.flags {
            helper = helper.arg(*flag).arg(value.to_string());
        }
        Running {
            process: helper.spawn(),
            started: Instant::now(),
            wait: start.wait,
            scratch,
        }
    }

    /// Returns what the program says about its library.
    pub(crate) fn about(&self) -> Result<About, String> {
        let fault = |text: &str| format!("{} about: {text}", self.name);
        let process = Helper::new(&self.file).arg("about").spawn();
        if !holds_within(MARGIN, || process.has_ended()) {
            return Err(fault("did not end"));
        }
        process.wait(MARGIN);
        let line = process
            .lines()
            .pop()
            .ok_or_else(|| fault("printed nothing"))?;
        serde_json::from_str(&line).map_err(|e| fault(&e.to_string()))
    }
}

/// A program that runs.
pub(crate) struct Running {
    process: Process,
    started: Instant,
    wait: Duration,
    scratch: Scratch,
}

impl Running {
    /// Waits for the end, and returns the last record.
    pub(crate) fn record(self) -> Result<Value, Failure> {
        self.end()?;
        let line = self.process.lines().pop();
        line.and_then(|line| serde_json::from_str(&line).ok())
            .ok_or_else(|| Failure::Failed("printed no JSON".to_owned()))
    }

    /// Waits for the end.
    pub(crate) fn end(&self) -> Result<(), Failure> {
        if !holds_within(self.wait + MARGIN, || self.process.has_ended()) {
            return Err(Failure::NotWithin((self.wait + MARGIN).as_secs()));
        }
        let status = self.process.wait(MARGIN);
        if status.success() {
            Ok(())
        } else {
            Err(self.failure())
        }
    }

    /// Waits for an event, and returns its time in microseconds of the system's clock.
    pub(crate) fn event(&self, name: &str) -> Result<f64, Failure> {
        let time = || {
            let lines = self.process.lines();
            let mut records = lines
                .iter()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            records.find(|record| record["event"] == name)?["unix_us"].as_f64()
        };
        let in_time = holds_within(self.wait + MARGIN, || {
            time().is_some() || self.process.has_ended()
        });
        if !in_time {
            return Err(Failure::NotWithin((self.wait + MARGIN).as_secs()));
        }
        // The last lines are complete only after the end.
        if self.process.has_ended() {
            self.process.wait(MARGIN);
        }
        time().ok_or_else(|| self.failure())
    }

    /// Returns whether the event has been printed.
    pub(crate) fn has_event(&self, name: &str) -> bool {
        let marker = format!("\"{name}\"");
        self.process
            .lines()
            .iter()
            .any(|line| line.contains(&marker))
    }

    /// Lets the program of the scenario `hold` release.
    pub(crate) fn release(&self) {
        // Unlike a line, this works when the program has ended.
        self.process.close_stdin();
    }

    pub(crate) fn kill(&self) {
        self.process.kill9();
    }

    /// A failure after the longest wait is a wait that reached its end.
    fn failure(&self) -> Failure {
        if self.started.elapsed() >= self.wait {
            return Failure::NotWithin(self.wait.as_secs());
        }
        let text = fs::read(self.scratch.path().join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Failure::Failed(
            lines
                .next_back()
                .unwrap_or("failed without a text")
                .to_owned(),
        )
    }
}
