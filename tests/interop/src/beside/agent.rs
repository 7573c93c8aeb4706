//! A process of one side that executes commands.

use std::cell::Cell;
use std::time::Duration;

use test_support::{Process, holds_within};

use super::reply::Reply;

/// Bound on a start of a process and on a command that does not wait, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The side of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Redisson,
    Ours,
}

impl Side {
    /// Returns the name for the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Redisson => "Redisson",
            Self::Ours => "ours",
        }
    }

    /// Returns the other side.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Redisson => Self::Ours,
            Self::Ours => Self::Redisson,
        }
    }
}

/// A running agent. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Agent {
    /// The name of its connections on the server.
    pub(super) name: String,
    pub(super) side: Side,
    pub(super) process: Process,
    commands: Cell<u64>,
}

impl Agent {
    /// Wraps a process that has just been started.
    pub(super) fn new(name: String, side: Side, process: Process) -> Self {
        let agent = Self {
            name,
            side,
            process,
            commands: Cell::new(0),
        };
        let is_ready = || agent.process.lines().iter().any(|line| line == "ready");
        assert!(holds_within(SOON, is_ready), "{} did not start", agent.name);
        agent
    }

    /// Sends a command.
    pub(super) fn send(&self, command: &str) -> Pending<'_> {
        let id = self.commands.get() + 1;
        self.commands.set(id);
        self.process.send_line(&format!("{id} {command}"));
        Pending {
            agent: self,
            id,
            command: command.to_owned(),
        }
    }

    /// Sends a command that does not wait for a lock, and waits for its reply.
    ///
    /// # Errors
    /// Fails if no reply comes.
    pub(super) fn call(&self, command: &str) -> Result<Reply, String> {
        self.send(command).reply(SOON)
    }

    /// Returns the number of events of this name and key so far.
    pub(super) fn count(&self, event: &str, key: &str) -> usize {
        let end = format!(" {event} {key}");
        let lines = self.process.lines();
        lines.iter().filter(|line| line.ends_with(&end)).count()
    }

    /// Waits for the first event of this name and key.
    ///
    /// # Errors
    /// Fails if it does not come in time.
    pub(super) fn event(&self, event: &str, key: &str, within: Duration) -> Result<Reply, String> {
        let mut found = None;
        holds_within(within, || {
            let lines = self.process.lines();
            let mut events = lines.iter().filter_map(|line| Reply::parse(line));
            found = events.find(|it| it.id == 0 && it.result == event && it.details == key);
            found.is_some()
        });
        let name = &self.name;
        found.ok_or_else(|| format!("{name} did not report `{event}` within {within:?}"))
    }
}

/// A command whose reply may not have come.
#[derive(Debug)]
#[must_use = "its reply says what happened"]
pub(super) struct Pending<'a> {
    agent: &'a Agent,
    id: u64,
    command: String,
}

impl Pending<'_> {
    /// Returns the reply if it has come.
    pub(super) fn now(&self) -> Option<Reply> {
        let begin = format!("{} ", self.id);
        let lines = self.agent.process.lines();
        let line = lines.iter().rev().find(|line| line.starts_with(&begin))?;
        Reply::parse(line)
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// Fails if it does not come in time.
    pub(super) fn reply(&self, within: Duration) -> Result<Reply, String> {
        let mut reply = None;
        holds_within(within, || {
            reply = self.now();
            reply.is_some()
        });
        let (name, command) = (&self.agent.name, &self.command);
        reply.ok_or_else(|| format!("{name} did not reply to `{command}` within {within:?}"))
    }

    /// Waits until it holds the lock.
    ///
    /// # Errors
    /// Fails if it does not get the lock in time.
    pub(super) fn held(&self, within: Duration) -> Result<Reply, String> {
        self.reply(within)?.expect("held")
    }
}
