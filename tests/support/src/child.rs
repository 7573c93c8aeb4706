//! The child's side of the channel to the test that started it.

use std::io::{self, Write};
use std::str::FromStr;
use std::time::Duration;

use serde_json::Value;

/// Writes one record to stdout, as a line of JSON.
pub fn say(record: &Value) {
    say_line(&record.to_string());
}

/// Writes one line to stdout.
pub fn say_line(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").expect("the test reads stdout");
    out.flush().expect("the test reads stdout");
}

/// Waits until the test closes stdin.
pub fn wait_for_end_of_input() {
    for _line in io::stdin().lines() {}
}

/// Reads the arguments of the program, one by one.
#[derive(Debug)]
pub struct Arguments(std::iter::Skip<std::env::Args>);

impl Arguments {
    /// Returns the arguments after the program's name.
    pub fn new() -> Self {
        Self(std::env::args().skip(1))
    }

    /// Returns the next argument as text.
    pub fn text(&mut self) -> String {
        self.0.next().expect("an argument is missing")
    }

    /// Returns the next argument as a number.
    pub fn number<T: FromStr>(&mut self) -> T {
        let parsed = self.text().parse().ok();
        parsed.expect("an argument is a number")
    }

    /// Returns the next argument as a number of milliseconds.
    pub fn millis(&mut self) -> Duration {
        Duration::from_millis(self.number())
    }
}

impl Default for Arguments {
    fn default() -> Self {
        Self::new()
    }
}
