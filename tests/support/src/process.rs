//! Child processes that can be killed and frozen.

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

/// A [`Helper`] for the program of this name in the package of the test.
///
/// A macro, because cargo gives the paths of a package's programs only to its integration tests.
#[macro_export]
macro_rules! helper {
    ($name:literal) => {
        $crate::process::Helper::new(env!(concat!("CARGO_BIN_EXE_", $name)))
    };
}

/// A program to run as a child of the test. Made by [`helper!`](crate::helper).
#[derive(Clone, Debug)]
pub struct Helper {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Helper {
    /// The program at this path.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// One more argument. Defaults to none.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A variable of its environment, beside those of the test. Defaults to none.
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

    /// Starts it. It is killed when the [`Process`] is dropped or the test's process ends.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
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
                // A line without its end is what a kill left of one.
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

/// A running child. Its stderr goes to the test's.
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
    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The whole lines it printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.output
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The lines it printed so far, each a JSON value.
    ///
    /// # Panics
    ///
    /// On a line that is no JSON.
    #[track_caller]
    pub fn records(&self) -> Vec<Value> {
        self.lines().iter().map(|line| parse(line)).collect()
    }

    /// Waits for a record, among those printed already or later, that `wanted` accepts.
    ///
    /// # Panics
    ///
    /// When none comes in time, and on a line that is no JSON.
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
                "the record did not come within {within:?}; there were:\n{}",
                lines.join("\n")
            );
            let woken = self.output.grown.wait_timeout(lines, left);
            lines = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Writes a line to its stdin.
    ///
    /// # Panics
    ///
    /// When the process does not read its stdin any more.
    #[track_caller]
    pub fn send_line(&self, line: &str) {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        let stdin = stdin.as_mut().expect("stdin was closed");
        writeln!(stdin, "{line}").unwrap_or_else(|e| panic!("the child does not read: {e}"));
    }

    /// Closes its stdin.
    pub fn close_stdin(&self) {
        self.stdin
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Kills it as a crash would. Returns when it is gone and all it had printed is in
    /// [`lines`](Self::lines). Does nothing to a process that has ended.
    pub fn kill9(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Running(child) = &mut *state {
            let _ = child.kill();
            *state = State::Ended(reap(child));
        }
        drop(state);
        self.drain();
    }

    /// Freezes it. Returns when all of its threads stand still.
    ///
    /// # Panics
    ///
    /// When it has ended.
    #[track_caller]
    pub fn stop(&self) {
        signal::stop(self.pid());
    }

    /// Lets it run on.
    pub fn cont(&self) {
        signal::cont(self.pid());
    }

    /// Whether it is gone, by itself or killed.
    pub fn has_ended(&self) -> bool {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ended(_) => true,
            State::Running(child) => signal::has_ended(child.id()),
        }
    }

    /// Waits until it ends by itself; all it had printed is then in [`lines`](Self::lines).
    ///
    /// # Panics
    ///
    /// When it does not end in time.
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

    /// Waits until what the pipe still holds is read. Bounded, because a grandchild that inherited
    /// the pipe may keep it open for as long as it lives.
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
