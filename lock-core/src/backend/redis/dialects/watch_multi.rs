//! Release and renewal where scripts are denied: an optimistic transaction.
//!
//! `WATCH` belongs to a connection, so each of these has one to itself while it runs.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tracing::debug;

use crate::backend::redis::client::{RedisClient, server_error};
use crate::backend::redis::connection::{Connection, Connector};
use crate::backend::redis::errors::{is_wrong_type, timed_out};
use crate::backend::redis::pool::Pool;
use crate::backend::redis::reply::{server_time, unexpected};
use crate::backend::{ReleaseOutcome, ReleaseRequest, RenewOutcome, Renewal};
use crate::error::LockError;
use crate::protocol::clock::{Clock, Deadline, Moment, ServerMs};
use crate::protocol::key::LockKey;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::ttl::whole_millis;

pub(super) struct WatchMulti {
    client: Arc<RedisClient>,
    pool: Pool,
}

/// What became of a change.
struct Changed {
    /// Whether the key was still the owner's.
    was_owner: bool,
    /// When the change was sent.
    sent: Moment,
    server_ms: ServerMs,
}

impl WatchMulti {
    pub(super) fn new(client: Arc<RedisClient>, connector: Connector) -> Self {
        Self {
            client,
            pool: Pool::new(connector),
        }
    }

    /// One after another: the transactions of a connection cannot overlap.
    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        owner: impl Fn(OwnerId) -> String,
        limit: Duration,
    ) -> Vec<RenewOutcome> {
        let time_limit = Deadline::after(Clock::System, limit);
        let mut answers = Vec::with_capacity(renewals.len());
        for renewal in renewals {
            let ttl = whole_millis(renewal.ttl);
            let key = renewal.key.as_str();
            let change = [redis::cmd("PEXPIRE").arg(key).arg(ttl).clone()];
            let left = time_limit.left();
            let owner = owner(renewal.owner_id);
            let changed = self.change(&renewal.key, &owner, &change, left).await;
            answers.push(match changed {
                Ok(changed) => RenewOutcome::if_ours(changed.was_owner, renewal, changed.sent),
                Err(error) => RenewOutcome::Failed(error),
            });
        }
        answers
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        owner: &str,
        nobody: &str,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let key = release_request.key.as_str();
        let change = match release_request.min_hold_ms(Clock::System.now()) {
            0 => vec![redis::cmd("DEL").arg(key).clone()],
            keep => vec![
                // Owned by nobody: a renewal that was overtaken must not lengthen it.
                redis::cmd("SET")
                    .arg(key)
                    .arg(nobody)
                    .arg("KEEPTTL")
                    .clone(),
                // Never longer than it would have been.
                redis::cmd("PEXPIRE").arg(key).arg(keep).arg("LT").clone(),
            ],
        };
        let changed = self
            .change(&release_request.key, owner, &change, limit)
            .await?;
        Ok(ReleaseOutcome::without_waiters(
            changed.was_owner,
            changed.server_ms,
        ))
    }

    /// Does something to the key if it is still the owner's. Done again when another client
    /// touched the key in between, which need not have taken it away.
    async fn change(
        &self,
        key: &LockKey,
        owner: &str,
        change: &[Cmd],
        limit: Duration,
    ) -> Result<Changed, LockError> {
        let time_limit = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(limit).await?;
        loop {
            let left = time_limit.left();
            // Given back between two tries: a key that is touched all the time holds up no other.
            let _turn = tokio::time::timeout(left, connection.turn.lock())
                .await
                .map_err(|_| timed_out("other transactions are under way"))?;
            let left = time_limit.left();
            if left.is_zero() {
                return Err(timed_out("the key is changed all the time"));
            }
            if let Some(changed) = self
                .try_change(&connection, key, owner, change, left)
                .await?
            {
                return Ok(changed);
            }
            self.client.counters.trace(|| {
                debug!(%key, "the key was touched in between; the transaction is done again");
            });
        }
    }

    /// `None` when the key was touched in between.
    async fn try_change(
        &self,
        connection: &Connection,
        key: &LockKey,
        owner: &str,
        change: &[Cmd],
        limit: Duration,
    ) -> Result<Option<Changed>, LockError> {
        let time_limit = Deadline::after(Clock::System, limit);
        let server_error = |error: RedisError| server_error(connection, key, &error);
        let mut look = Pipeline::with_capacity(2);
        look.cmd("WATCH").arg(key.as_str());
        // More than the owner has: what begins with it is somebody else's.
        look.cmd("GETRANGE")
            .arg(key.as_str())
            .arg(0)
            .arg(owner.len());
        let [watching, value] = call(connection, &mut look, limit).await?;
        watching.map_err(server_error)?;
        let was_owner = match value {
            Ok(value) => value == Value::BulkString(owner.as_bytes().to_vec()),
            Err(error) if is_wrong_type(&error) => false,
            Err(error) => return Err(server_error(error)),
        };
        let mut act = Pipeline::with_capacity(5);
        act.cmd("MULTI");
        if was_owner {
            for command in change {
                act.add_command(command.clone());
            }
        } else {
            // Something has to stand between the two, and nothing is to be done.
            act.cmd("TIME");
        }
        act.cmd("EXEC").cmd("TIME");
        let sent = Clock::System.now();
        act.ignore_errors();
        let mut replies = connection.call_all(&act, time_limit.left()).await?;
        let time = replies.pop().ok_or_else(unexpected)?;
        let executed = replies.pop().ok_or_else(unexpected)?;
        for queued in replies {
            // Refused as it was queued: that says more than the refusal of the whole.
            queued.map_err(server_error)?;
        }
        let executed = executed.map_err(server_error)?;
        let server_us = server_time(time.map_err(server_error)?)?;
        self.client.record_server_time(connection, sent, server_us);
        let changed = Changed {
            was_owner,
            sent,
            server_ms: ServerMs::from_micros(server_us),
        };
        // Touched in between: that matters only to one who was to change it.
        Ok((!was_owner || executed != Value::Nil).then_some(changed))
    }
}

async fn call<const N: usize>(
    connection: &Connection,
    pipeline: &mut Pipeline,
    limit: Duration,
) -> Result<[Result<Value, RedisError>; N], LockError> {
    pipeline.ignore_errors();
    let replies = connection.call_all(pipeline, limit).await?;
    replies.try_into().map_err(|_| unexpected())
}
