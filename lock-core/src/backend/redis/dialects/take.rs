//! Taking a lock by a script.

use std::time::Duration;

use super::found::Found;
use crate::backend::Attempt;
use crate::backend::redis::connection::Connection;
use crate::backend::redis::reply::{self, Taken};
use crate::backend::redis::scripts::Script;
use crate::backend::redis::server::{LATE_TRIES, NotAfter, Server, always_late};
use crate::clock::{Clock, Moment, ServerMs};
use crate::error::LockError;

/// What such a script has said.
pub(super) struct Said {
    /// For how long the lock is ours, or who has it.
    pub(super) got: Result<Duration, Found>,
    pub(super) sent: Moment,
    /// How the command was timed that was answered.
    pub(super) timing: NotAfter,
    pub(super) server_ms: ServerMs,
}

/// Sends the script until it is not late.
pub(super) async fn take(
    server: &Server,
    attempt: &mut Attempt,
    connection: &Connection,
    script: &Script,
    args: impl Fn(NotAfter) -> Vec<String>,
    limit: Duration,
) -> Result<Said, LockError> {
    let until = Clock::System.now().plus(limit);
    let key = attempt.key.clone();
    for _ in 0..LATE_TRIES {
        let now = Clock::System.now();
        let timing = server.not_after(connection, now);
        let copy = attempt.sending(connection.origin, timing.not_after_ms);
        let left = until.since(now);
        let asked = server
            .ask(connection, script, &key, &args(timing), reply::taken, left)
            .await?;
        attempt.answered(&copy);
        let got = match asked.it {
            Taken::Late => continue,
            Taken::Held { remaining_ms } => Ok(Duration::from_millis(remaining_ms)),
            Taken::Busy { holder } => Err(Found::by_script(holder)),
            Taken::Foreign { found } => Err(Found::Type(found)),
        };
        return Ok(Said {
            got,
            sent: asked.sent,
            timing,
            server_ms: asked.server_ms,
        });
    }
    Err(always_late())
}
