//! The two services as processes.

use std::fmt;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::BoxError;

/// A running service. It prints `ready`, reads `go`, sells, and prints `done` with its numbers. Killed on drop.
pub struct Service {
    name: &'static str,
    lines: Lines<BufReader<ChildStdout>>,
    input: ChildStdin,
    _process: Child,
}

/// What a service did.
pub struct Report {
    pub name: &'static str,
    pub sections: u64,
    /// The sections in which it found that the other service had the lock before.
    pub changes: u64,
    first_token: u64,
    last_token: u64,
}

impl Service {
    pub fn start(name: &'static str, command: &mut Command) -> Result<Self, BoxError> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take().ok_or("the service has no input")?;
        let output = process.stdout.take().ok_or("the service has no output")?;
        Ok(Self {
            name,
            lines: BufReader::new(output).lines(),
            input,
            _process: process,
        })
    }

    /// Waits until the service is connected.
    pub async fn ready(&mut self) -> Result<(), BoxError> {
        self.line("ready").await.map(drop)
    }

    pub async fn go(&mut self) -> std::io::Result<()> {
        self.input.write_all(b"go\n").await?;
        self.input.flush().await
    }

    pub async fn report(&mut self) -> Result<Report, BoxError> {
        let numbers = self.line("done").await?;
        let numbers: Result<Vec<u64>, _> = numbers.split_whitespace().map(str::parse).collect();
        let [sections, changes, first_token, last_token] = numbers?[..] else {
            return Err(format!("{} reported other numbers", self.name).into());
        };
        Ok(Report {
            name: self.name,
            sections,
            changes,
            first_token,
            last_token,
        })
    }

    /// Reads a line with this first word, and returns the rest.
    async fn line(&mut self, word: &str) -> Result<String, BoxError> {
        let line = self.lines.next_line().await?.unwrap_or_default();
        let rest = line.strip_prefix(word);
        let rest = rest.ok_or_else(|| format!("{} failed before `{word}`", self.name))?;
        Ok(rest.trim().to_owned())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            sections,
            first_token,
            last_token,
            ..
        } = self;
        write!(
            f,
            "  {name:<20} {sections:>6} sections, tokens {first_token} to {last_token}"
        )
    }
}
