//! Acquires a lock by a script of a dialect.

use std::time::Duration;

use super::found::FoundValue;
use crate::backend::redis::client::RedisClient;
use crate::backend::redis::connection::Connection;
use crate::backend::redis::reply::{self, DialectReply};
use crate::backend::redis::scripts::Script;
use crate::error::LockError;
use lock_protocol::acquisition::SentAcquires;
use lock_protocol::clock::{Clock, Moment, ServerMs};
use lock_protocol::clock_sync::NotAfter;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::resp::LOCK_REPLY;

/// The result of an acquire script.
pub(super) struct ScriptAcquire {
    /// The remaining lease of the acquired lock, or the value that the key has instead.
    pub(super) result: Result<Duration, FoundValue>,
    /// The token of an acquired lock, in a dialect with fencing tokens.
    pub(super) token: Option<FencingToken>,
    pub(super) sent: Moment,
    /// The time limit that the executed copy carried.
    pub(super) timing: NotAfter,
    pub(super) server_ms: ServerMs,
}

/// Sends the script once. Returns `None` if the copy arrived late. `args` gets the time limit of the copy.
pub(super) async fn acquire_by_script(
    client: &RedisClient,
    sent: &mut SentAcquires,
    connection: &Connection,
    script: &Script,
    keys: &[&str],
    args: impl Fn(NotAfter) -> Vec<String>,
    limit: Duration,
) -> Result<Option<ScriptAcquire>, LockError> {
    let key = sent.key.clone();
    let now = Clock::System.now();
    let timing = client.not_after(connection, now);
    let copy = client.unconfirmed(connection, timing.not_after_ms, now);
    let copy = sent.on_send_without_entry(connection.origin, copy);
    let args = args(timing);
    let read = reply::dialect_acquire;
    let (sent_at, reply) = client
        .call_script(
            connection, script, &key, keys, &args, read, LOCK_REPLY, limit,
        )
        .await?;
    sent.on_any_reply(&copy);
    let server_ms = reply.server_ms();
    let mut granted = None;
    let result = match reply.value {
        DialectReply::Late => return Ok(None),
        DialectReply::Held {
            remaining_ms,
            token,
        } => {
            granted = token;
            Ok(Duration::from_millis(remaining_ms))
        }
        DialectReply::Busy { holder } => Err(FoundValue::from_script(holder)),
        DialectReply::Foreign { found } => Err(FoundValue::Type(found)),
    };
    Ok(Some(ScriptAcquire {
        result,
        token: granted,
        sent: sent_at,
        timing,
        server_ms,
    }))
}
