//! The processes that increment one counter under one lock.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use test_support::RedisServer;
use test_support::holds_within;
use test_support::{Helper, Process};

use crate::counter::Counter;
use crate::wakes::WakeCounts;

/// Bound on a start. A JVM starts within a second; several at once on a busy machine need much
/// longer.
const START: Duration = Duration::from_secs(60);

/// Bound on an end: the longest wait of a client, plus time for its section and exit.
const END: Duration = Duration::from_secs(30);

/// Long compared with every section, so that no lock is lost on a busy machine.
const TTL: Duration = Duration::from_secs(10);

/// The longest pause between two sections. With 3 ms a polling client acquires the lock again
/// before any other client polls. A native waiter polls every 50 ms and then gets 2 to 10 % of the
/// sections. Real services are not that aggressive.
const PAUSE_MS: &str = "15";

/// One kind of process, and its name.
#[derive(Clone, Debug)]
pub struct ClientKind {
    name: String,
    helper: Helper,
}

impl ClientKind {
    /// Creates a side whose processes are started with this helper.
    pub fn new(name: &str, helper: Helper) -> Self {
        Self {
            name: name.to_owned(),
            helper,
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A lock key, and the counter that the lock protects.
#[derive(Debug)]
pub struct GuardedCounter {
    /// The ports of the servers, with commas between them.
    ports: String,
    key: String,
    counter: PathBuf,
    ttl: Duration,
}

impl GuardedCounter {
    /// Creates a counter with the value 0. The key is at all servers.
    pub fn new(servers: &[RedisServer], key: &str) -> Self {
        let ports: Vec<_> = servers.iter().map(|it| it.port().to_string()).collect();
        let counter = servers[0]
            .directory()
            .join(format!("counter-{}", key.replace(':', "-")));
        fs::write(&counter, "0").expect("the server's directory is writable");
        Self {
            ports: ports.join(","),
            key: key.to_owned(),
            counter,
            ttl: TTL,
        }
    }

    /// Sets the ttl of the lock. Defaults to 10 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Starts a process, which then waits for [`ClientProcess::go`].
    pub fn start(&self, side: &ClientKind, number: usize) -> ClientProcess {
        let process = side
            .helper
            .clone()
            .env("REDIS_PORT", &self.ports)
            .env("LOCK_KEY", &self.key)
            .env("TTL_MS", self.ttl.as_millis().to_string())
            .env("COUNTER", &self.counter)
            .env("PAUSE_MS", PAUSE_MS)
            .spawn();
        ClientProcess {
            name: format!("{} {number}", side.name),
            process,
        }
    }

    /// Returns the counter after the last write.
    ///
    /// # Errors
    /// Returns the text that the counter holds instead of a number.
    pub fn count(&self) -> Result<u64, String> {
        let text = fs::read_to_string(&self.counter).expect("the counter file exists");
        let counter = Counter::parse(text.trim());
        counter.map(|counter| counter.count).ok_or_else(|| {
            format!("the counter holds `{text}`: two processes wrote it at the same time")
        })
    }
}

/// A process that increments the counter.
#[derive(Debug)]
pub struct ClientProcess {
    name: String,
    process: Process,
}

/// The result that a process reports at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The number of completed sections.
    pub sections: u64,
    /// How often the key held a value that is no lock of its scheme.
    pub refused: u64,
    /// How its waits ended, if it counts them.
    pub wakes: Option<WakeCounts>,
}

/// A completed section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// The number that the section wrote.
    pub count: u64,
    /// When it ended, in microseconds since the epoch.
    pub ended: u64,
}

impl Section {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("section ")?.split(' ');
        let mut number = || words.next()?.parse().ok();
        Some(Self {
            count: number()?,
            ended: number()?,
        })
    }
}

fn is_section(line: &str) -> bool {
    line == "section" || line.starts_with("section ")
}

impl ClientProcess {
    /// Returns the name: its side and a number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the process is connected.
    ///
    /// # Errors
    /// Fails if the process has ended or takes too long.
    pub fn ready(&self) -> Result<(), String> {
        let is_ready = || self.process.lines().iter().any(|line| line == "ready");
        if holds_within(START, || is_ready() || self.has_ended()) && is_ready() {
            return Ok(());
        }
        Err(format!("{} did not become ready", self.name))
    }

    /// Lets the process begin.
    pub fn go(&self) {
        self.process.send_line("go");
    }

    /// Returns the number of sections that it has completed so far.
    pub fn sections(&self) -> u64 {
        let lines = self.process.lines();
        let sections = lines.iter().filter(|line| is_section(line));
        sections.count() as u64
    }

    /// Returns the numbers that it has written to the counter so far. Only the programs that can be
    /// killed in a race print them.
    pub fn written(&self) -> Vec<Section> {
        let lines = self.process.lines();
        lines
            .iter()
            .filter_map(|line| Section::parse(line))
            .collect()
    }

    /// Kills the process. Its number may be in the counter without a line that says so.
    pub fn kill(&self) {
        self.process.kill9();
    }

    /// Freezes the process.
    pub fn freeze(&self) {
        self.process.stop();
    }

    /// Lets the frozen process continue.
    pub fn thaw(&self) {
        self.process.cont();
    }

    /// Returns whether the process has ended. Before [`stop`](Self::stop) that is a fault.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Requests the process to stop after its current section.
    pub fn stop(&self) {
        // Closing the input has the same effect as a line, and also works with a process that has
        // ended.
        self.process.close_stdin();
    }

    /// Waits until the process has stopped.
    ///
    /// # Errors
    /// Fails if the process does not stop, or with the fault that its exit code reports.
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
            Some(5) => "got a fencing token that is not greater than the last one",
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
        wakes: WakeCounts::parse(&mut words),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_process_may_have_the_counts_of_its_waits() {
        let done = |line: &str| parse(&[line.to_owned()]);
        let plain = done("done 7 1").expect("two numbers are enough");
        assert_eq!((plain.sections, plain.refused, plain.wakes), (7, 1, None));
        let wakes = done("done 7 0 3 4 0 12").and_then(|done| done.wakes);
        assert_eq!(
            wakes.map(|wakes| (wakes.notification, wakes.commands)),
            Some((4, 12))
        );
        assert_eq!(done("section"), None);
    }

    #[test]
    fn section_may_have_its_number() {
        assert!(is_section("section") && is_section("section 3 1700000000000000"));
        assert!(!is_section("sections"));
        let section = Section::parse("section 3 1700000000000000");
        assert_eq!(section.map(|section| section.count), Some(3));
        assert_eq!(Section::parse("section"), None);
    }
}
