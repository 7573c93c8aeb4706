//! One test for each way in which a lock on one Redis primary can go wrong: it provokes the fault
//! on a real server, and shows what happens instead. The number in a test's name is that of the
//! mode in the project's list; modes that take several servers are not here.

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

/// A process that holds [`NAME`], or waits for it first.
fn holder(url: &str, ttl: Duration, wait: Duration) -> Helper {
    helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", url)
        .arg("hold")
        .arg(NAME)
        .arg(ttl.as_millis().to_string())
        .arg(wait.as_millis().to_string())
}

/// How often a script set [`KEY`] in a recording.
fn grants(recording: &Recording) -> usize {
    let set = |command: &&Command| {
        command.is_from_script() && command.name() == "SET" && command.words[1] == KEY
    };
    recording.all().iter().filter(set).count()
}
