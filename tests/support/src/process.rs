//! Child processes that a test can kill and freeze.

use std::ffi::OsString;
use std::fmt::{self, Debug, Formatter};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::janitor;
use crate::preload::Shim;
use crate::signal;
use crate::wait::holds_within;

/// Bound on reading the rest of the output of an ended process.
const DRAIN: Duration = Duration::from_secs(5);

/// Creates a [`Helper`] for the program of this name in the package of the test.
///
/// A macro, because cargo gives the paths of a package's programs only to its integration tests.
#[macro_export]
macro_rules! helper {
    ($name:literal) => {
        $crate::process::Helper::new(env!(concat!("CARGO_BIN_EXE_", $name)))
    };
}

/// A program that runs as a child of the test. Created by [`helper!`](crate::helper).
#[derive(Clone, Debug)]
pub struct Helper {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Helper {
    /// Creates a helper for the program at this path.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Adds an argument. Defaults to none.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds an environment variable to those of the test. Defaults to none.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Loads this shim into the process. Defaults to none.
    #[must_use]
    pub fn preload(self, shim: &Shim) -> Self {
        let (name, value) = shim.preload();
        self.env(name, value)
    }

    /// Starts the program. It is killed when the [`Process`] is dropped or the test's process ends.
    ///
    /// # Panics
    ///
    /// Panics if the program cannot be started.
    #[track_caller]
    pub fn spawn(&self) -> Process {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {}: {e}", self.program.display()));
        janitor::watch(child.id());
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("stdout is piped");
        let output = Arc::new(Output::default());
        let filled = Arc::clone(&output);
        let reader = thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            while matches!(stdout.read_until(b'\n', &mut line), Ok(1..)) {
                // A kill leaves a line without its end.
                if line.ends_with(b"\n") {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    filled
                        .lines
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(text);
                    filled.grown.notify_all();
                }
                line.clear();
            }
        });
        Process {
            pid: child.id(),
            state: Mutex::new(State::Running(child)),
            stdin: Mutex::new(stdin),
            output,
            reader,
        }
    }
}

enum State {
    Running(Child),
    Ended(ExitStatus),
}

#[derive(Default)]
struct Output {
    lines: Mutex<Vec<String>>,
    grown: Condvar,
}

/// A running child process. Its stderr is the test's stderr.
pub struct Process {
    pid: u32,
    state: Mutex<State>,
    stdin: Mutex<Option<ChildStdin>>,
    output: Arc<Output>,
    reader: JoinHandle<()>,
}

impl Debug for Process {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

impl Process {
    /// Returns the id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the complete lines that the process has printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.output
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the lines that the process has printed so far, each parsed as JSON.
    ///
    /// # Panics
    ///
    /// Panics if a line is not JSON.
    #[track_caller]
    pub fn records(&self) -> Vec<Value> {
        self.lines().iter().map(|line| parse(line)).collect()
    }

    /// Waits for a record that `wanted` accepts, among those already printed and those printed
    /// later.
    ///
    /// # Panics
    ///
    /// Panics if no such record comes in time, or if a line is not JSON.
    #[track_caller]
    pub fn record(&self, within: Duration, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        let started = Instant::now();
        let mut seen = 0;
        let mut lines = self
            .output
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            while let Some(line) = lines.get(seen) {
                let record = parse(line);
                if wanted(&record) {
                    return record;
                }
                seen += 1;
            }
            let left = within.saturating_sub(started.elapsed());
            assert!(
                !left.is_zero(),
                "no such record came within {within:?}; the records are:\n{}",
                lines.join("\n")
            );
            let woken = self.output.grown.wait_timeout(lines, left);
            lines = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes a line to the stdin of the process.
    ///
    /// # Panics
    ///
    /// Panics if the process no longer reads its stdin.
    #[track_caller]
    pub fn send_line(&self, line: &str) {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        let stdin = stdin.as_mut().expect("stdin was closed");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("the child does not read: {e}"));
    }

    /// Closes the stdin of the process.
    pub fn close_stdin(&self) {
        self.stdin
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Kills the process, as a crash would. Returns when it has ended and its whole output is in
    /// [`lines`](Self::lines). Does nothing if the process has already ended.
    pub fn kill9(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Running(child) = &mut *state {
            let _ = child.kill();
            *state = State::Ended(reap(child));
        }
        drop(state);
        self.drain();
    }

    /// Freezes the process. Returns when all of its threads have stopped.
    ///
    /// # Panics
    ///
    /// Panics if the process has ended.
    #[track_caller]
    pub fn stop(&self) {
        signal::stop(self.pid());
    }

    /// Lets the process continue.
    pub fn cont(&self) {
        signal::cont(self.pid());
    }

    /// Returns whether the process has ended, by itself or by a kill.
    pub fn has_ended(&self) -> bool {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ended(_) => true,
            State::Running(child) => signal::has_ended(child.id()),
        }
    }

    /// Waits until the process ends by itself; then its whole output is in [`lines`](Self::lines).
    ///
    /// # Panics
    ///
    /// Panics if the process does not end in time.
    #[track_caller]
    pub fn wait(&self, within: Duration) -> ExitStatus {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match &mut *state {
            State::Ended(status) => *status,
            State::Running(child) => {
                let ended = holds_within(within, || signal::has_ended(child.id()));
                assert!(ended, "the process did not end within {within:?}");
                reap(child)
            }
        };
        *state = State::Ended(status);
        drop(state);
        self.drain();
        status
    }

    /// Waits until the remaining content of the pipe is read. Bounded, because a grandchild that
    /// inherited the pipe may keep it open.
    fn drain(&self) {
        holds_within(DRAIN, || self.reader.is_finished());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn reap(child: &mut Child) -> ExitStatus {
    janitor::forget(child.id());
    child.wait().expect("a child can be waited for")
}

#[track_caller]
fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}"))
}
