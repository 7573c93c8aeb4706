//! Taking a lock by a script.

use std::time::Duration;

use super::found::FoundValue;
use crate::backend::Acquisition;
use crate::backend::redis::client::{LATE_TRIES, NotAfter, RedisClient, clock_runs_away};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::reply::{self, DialectReply};
use crate::backend::redis::scripts::Script;
use crate::error::LockError;
use crate::protocol::clock::{Clock, Deadline, Moment, ServerMs};

/// What such a script has said.
pub(super) struct ScriptAcquire {
    /// For how long the lock is ours, or who has it.
    pub(super) result: Result<Duration, FoundValue>,
    pub(super) sent: Moment,
    /// How the command was timed that was answered.
    pub(super) timing: NotAfter,
    pub(super) server_ms: ServerMs,
}

/// Sends the script until it is not late.
pub(super) async fn acquire_by_script(
    client: &RedisClient,
    acquisition: &mut Acquisition,
    connection: &Connection,
    script: &Script,
    args: impl Fn(NotAfter) -> Vec<String>,
    limit: Duration,
) -> Result<ScriptAcquire, LockError> {
    let time_limit = Deadline::after(Clock::System, limit);
    let key = acquisition.key.clone();
    for _ in 0..LATE_TRIES {
        let now = Clock::System.now();
        let timing = client.not_after(connection, now);
        let command = acquisition.sending(connection.origin, timing.not_after_ms);
        let left = time_limit.left();
        let (sent, reply) = client
            .call_script(
                connection,
                script,
                &key,
                &args(timing),
                reply::dialect_acquire,
                left,
            )
            .await?;
        acquisition.answered(&command);
        let server_ms = reply.server_ms();
        let result = match reply.value {
            DialectReply::Late => continue,
            DialectReply::Held { remaining_ms } => Ok(Duration::from_millis(remaining_ms)),
            DialectReply::Busy { holder } => Err(FoundValue::by_script(holder)),
            DialectReply::Foreign { found } => Err(FoundValue::Type(found)),
        };
        return Ok(ScriptAcquire {
            result,
            sent,
            timing,
            server_ms,
        });
    }
    Err(clock_runs_away())
}
