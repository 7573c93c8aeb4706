//! One test for each failure of a lock on one Redis primary: it provokes the failure on a real
//! server, and checks what the library does. The number in a test's name is the number in
//! `lock_core::guide::failure_modes`. Failures of several servers have no test here.

mod ambiguity;
mod guide;
mod runtime;
mod server_errors;
mod state_loss;
mod time;
mod waiting;

use std::time::Duration;

use test_support::fixtures::{KEY, NAME};
use test_support::monitor::Command;
use test_support::{Helper, Recording, helper};

/// A process that holds [`NAME`], or first waits for it.
fn holder(url: &str, ttl: Duration, wait: Duration) -> Helper {
    helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", url)
        .arg("hold")
        .arg(NAME)
        .arg(ttl.as_millis().to_string())
        .arg(wait.as_millis().to_string())
}

/// Returns how often a script set [`KEY`] in a recording.
fn grants(recording: &Recording) -> usize {
    let set = |command: &&Command| {
        command.is_from_script() && command.name() == "SET" && command.words[1] == KEY
    };
    recording.all().iter().filter(set).count()
}
