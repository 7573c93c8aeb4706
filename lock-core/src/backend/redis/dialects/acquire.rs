//! Acquires a lock by a script of a dialect.

use std::time::Duration;

use super::found::FoundValue;
use crate::backend::Acquisition;
use crate::backend::redis::client::{LATE_TRIES, NotAfter, RedisClient, clock_keeps_jumping};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::reply::{self, DialectReply};
use crate::backend::redis::scripts::Script;
use crate::error::LockError;
use crate::protocol::clock::{Clock, Deadline, Moment, ServerMs};

/// The result of an acquire script.
pub(super) struct ScriptAcquire {
    /// The remaining lease of the acquired lock, or the value that the key has instead.
    pub(super) result: Result<Duration, FoundValue>,
    pub(super) sent: Moment,
    /// The time limit that the executed copy carried.
    pub(super) timing: NotAfter,
    pub(super) server_ms: ServerMs,
}

/// Sends the script until a copy arrives in time.
pub(super) async fn acquire_by_script(
    client: &RedisClient,
    acquisition: &mut Acquisition,
    connection: &Connection,
    script: &Script,
    args: impl Fn(NotAfter) -> Vec<String>,
    limit: Duration,
) -> Result<ScriptAcquire, LockError> {
    let deadline = Deadline::after(Clock::System, limit);
    let key = acquisition.key.clone();
    for _ in 0..LATE_TRIES {
        let now = Clock::System.now();
        let timing = client.not_after(connection, now);
        let command = acquisition.sending(connection.origin, timing.not_after_ms);
        let (sent, reply) = client
            .call_script(
                connection,
                script,
                &key,
                &args(timing),
                reply::dialect_acquire,
                deadline.left(),
            )
            .await?;
        acquisition.answered(&command);
        let server_ms = reply.server_ms();
        let result = match reply.value {
            DialectReply::Late => continue,
            DialectReply::Held { remaining_ms } => Ok(Duration::from_millis(remaining_ms)),
            DialectReply::Busy { holder } => Err(FoundValue::from_script(holder)),
            DialectReply::Foreign { found } => Err(FoundValue::Type(found)),
        };
        return Ok(ScriptAcquire {
            result,
            sent,
            timing,
            server_ms,
        });
    }
    Err(clock_keeps_jumping())
}
