//! The processes that increment one counter under one key.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use test_support::RedisServer;
use test_support::holds_within;
use test_support::{Helper, Process};

/// Bound on a start. A JVM is there within a second; several at once on a busy machine take many.
const START: Duration = Duration::from_secs(60);

/// Bound on an end: the longest wait of a client, and some for its section and exit.
const END: Duration = Duration::from_secs(30);

/// Long against every section, so that no lock is lost on a busy machine.
const TTL_MS: &str = "10000";

/// The longest pause between two sections. With 3 ms those that poll take the lock again before
/// anybody else looks, and a native waiter, who looks every 50 ms, gets 2 to 10 % of it. Services
/// are not that greedy.
const PAUSE_MS: &str = "15";

/// One kind of process, and what to call it.
#[derive(Clone, Debug)]
pub struct ClientKind {
    name: String,
    helper: Helper,
}

impl ClientKind {
    /// A side whose processes are started so.
    pub fn new(name: &str, helper: Helper) -> Self {
        Self {
            name: name.to_owned(),
            helper,
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A key, and the counter that it guards.
#[derive(Debug)]
pub struct GuardedCounter {
    port: u16,
    key: String,
    counter: PathBuf,
}

impl GuardedCounter {
    /// An arena whose counter is 0.
    pub fn new(server: &RedisServer, key: &str) -> Self {
        let counter = server
            .directory()
            .join(format!("counter-{}", key.replace(':', "-")));
        fs::write(&counter, "0").expect("the server's directory is writable");
        Self {
            port: server.port(),
            key: key.to_owned(),
            counter,
        }
    }

    /// Starts a process, which then waits for [`ClientProcess::go`].
    pub fn start(&self, side: &ClientKind, number: usize) -> ClientProcess {
        let process = side
            .helper
            .clone()
            .env("REDIS_PORT", self.port.to_string())
            .env("LOCK_KEY", &self.key)
            .env("TTL_MS", TTL_MS)
            .env("COUNTER", &self.counter)
            .env("PAUSE_MS", PAUSE_MS)
            .spawn();
        ClientProcess {
            name: format!("{} {number}", side.name),
            process,
        }
    }

    /// The counter, after the last write.
    ///
    /// # Errors
    /// What it holds instead of a number.
    pub fn count(&self) -> Result<u64, String> {
        let text = fs::read_to_string(&self.counter).expect("the counter is there");
        let count = text.trim().parse();
        count.map_err(|_| format!("the counter holds `{text}`: two wrote it at a time"))
    }
}

/// A process that increments the counter.
#[derive(Debug)]
pub struct ClientProcess {
    name: String,
    process: Process,
}

/// What a process says at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Sections that it went through.
    pub sections: u64,
    /// How often the key held something else than a lock of its scheme.
    pub refused: u64,
}

impl ClientProcess {
    /// What it is called: its side and a number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it is connected.
    ///
    /// # Errors
    /// It has ended, or takes too long.
    pub fn ready(&self) -> Result<(), String> {
        let is_ready = || self.process.lines().iter().any(|line| line == "ready");
        if holds_within(START, || is_ready() || self.has_ended()) && is_ready() {
            return Ok(());
        }
        Err(format!("{} did not come to be ready", self.name))
    }

    /// Lets it begin.
    pub fn go(&self) {
        self.process.send_line("go");
    }

    /// How many sections it has gone through so far.
    pub fn sections(&self) -> u64 {
        let lines = self.process.lines();
        lines.iter().filter(|line| *line == "section").count() as u64
    }

    /// Whether it is gone, which before [`stop`](Self::stop) is a fault.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Asks it to stop after the section that it is in.
    pub fn stop(&self) {
        // The end of its input says the same as a line, and can be said to one that is gone.
        self.process.close_stdin();
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// It does not stop, or what it says by its exit code.
    pub fn done(&self) -> Result<Done, String> {
        if !holds_within(END, || self.has_ended()) {
            return Err(format!("{} did not stop within {END:?}", self.name));
        }
        let status = self.process.wait(END);
        let fault = match status.code() {
            Some(0) => {
                return parse(&self.process.lines()).ok_or(format!("{}: no `done`", self.name));
            }
            Some(3) => "found the counter in the middle of another process's write",
            Some(4) => "lost the lock while it held it",
            _ => "failed",
        };
        Err(format!("{} {fault} ({status})", self.name))
    }
}

fn parse(lines: &[String]) -> Option<Done> {
    let mut words = lines.last()?.strip_prefix("done ")?.split(' ');
    let mut number = || words.next()?.parse().ok();
    Some(Done {
        sections: number()?,
        refused: number()?,
    })
}
