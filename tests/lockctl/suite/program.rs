//! Runs the program.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use rustix::process::{Pid, Signal};
use test_support::fixtures::SOON;
use test_support::{Helper, Process, RedisServer, Scratch, eventually_some};

/// The path of `lockctl`.
pub(crate) const LOCKCTL: &str = env!("CARGO_BIN_EXE_lockctl-under-test");

/// The variables that change what the program does.
const VARIABLES: [&str; 6] = [
    "DISTRIBUTED_LOCK_URL",
    "DISTRIBUTED_LOCK_PREFIX",
    "NO_COLOR",
    "CLICOLOR_FORCE",
    "CLICOLOR",
    "COLUMNS",
];

/// Lets the programs of this test get the signals that its parent ignores: those of `nohup`, and of a
/// job in the background of a shell. A signal that is ignored stays ignored in a child, and one with a
/// handler does not.
fn stop_ignoring_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (signal, code) in [(Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
            let always = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_shutdown(signal.as_raw(), code, always)
                .expect("the signal may have a handler");
        }
    });
}

/// How a run of `lockctl` ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `lockctl` with arguments and an environment. Its stdin is not a terminal.
#[derive(Clone, Debug)]
pub(crate) struct Lockctl {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

impl Lockctl {
    /// A program without a server.
    pub(crate) fn new(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(OsString::from).collect(),
            environment: Vec::new(),
        }
    }

    /// A program that uses this server.
    pub(crate) fn on(server: &RedisServer, arguments: &[&str]) -> Self {
        Self::new(arguments).env("DISTRIBUTED_LOCK_URL", server.url())
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub(crate) fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self) -> Outcome {
        self.start().wait()
    }

    /// Starts the program, with its output in files. It is killed at the end of the test.
    pub(crate) fn start(&self) -> Running {
        stop_ignoring_signals();
        let scratch = Scratch::new();
        // The shell becomes the program, and keeps its process id.
        let unset: String = VARIABLES.map(|name| format!("unset {name}; ")).concat();
        let mut set = String::new();
        for (name, value) in &self.environment {
            let _ = write!(set, "export {}={}; ", text(name), quoted(value));
        }
        let script = format!("{unset}{set}exec \"$@\" >\"$0\".out 2>\"$0\".err </dev/null");
        let base = scratch.path().join("it");
        let mut helper = Helper::new("sh")
            .arg("-c")
            .arg(script)
            .arg(&base)
            .arg(LOCKCTL);
        for argument in &self.arguments {
            helper = helper.arg(argument);
        }
        Running {
            process: helper.spawn(),
            out: base.with_extension("out"),
            err: base.with_extension("err"),
            _scratch: scratch,
        }
    }
}

fn text(text: &OsStr) -> &str {
    text.to_str().expect("tests use UTF-8")
}

fn quoted(value: &OsStr) -> String {
    format!("'{}'", text(value).replace('\'', "'\\''"))
}

/// A running `lockctl`.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) process: Process,
    out: PathBuf,
    err: PathBuf,
    _scratch: Scratch,
}

impl Running {
    pub(crate) fn stdout(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap_or_default()
    }

    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap_or_default()
    }

    /// Waits until stdout has a line that begins with this, and returns the rest of it.
    #[track_caller]
    pub(crate) fn line(&self, start: &str) -> String {
        eventually_some(SOON, || {
            let out = self.stdout();
            let line = out.lines().find_map(|line| line.strip_prefix(start));
            assert!(
                line.is_some() || !self.process.has_ended() || self.stdout().contains(start),
                "it ended without `{start}`: {out}{}",
                self.stderr()
            );
            line.map(ToOwned::to_owned)
        })
    }

    /// Sends a signal to lockctl alone.
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid().try_into().expect("process ids fit")
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn wait(&self) -> Outcome {
        let status: ExitStatus = self.process.wait(SOON);
        Outcome {
            code: status.code(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }
}

/// Sends a signal to a process.
pub(crate) fn send(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("process ids are positive");
    // A process that has ended needs no signal.
    let _ = rustix::process::kill_process(pid, signal);
}

/// Whether a process exists and is no zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let state = stat.ok().and_then(|stat| {
        let (_, rest) = stat.rsplit_once(')')?;
        rest.trim_start().chars().next()
    });
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Runs a program of the machine to its end, and returns its stdout.
pub(crate) fn system(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}
