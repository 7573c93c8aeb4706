//! Releases and renews by an optimistic transaction, where scripts are denied.
//!
//! `WATCH` belongs to a connection, so a transaction has its connection to itself while it runs.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};

use super::owner::VALUE_LIMIT;
use crate::backend::Renewal;
use crate::backend::redis::client::{RedisClient, server_error};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::connector::Connector;
use crate::backend::redis::errors::{is_wrong_type, timed_out};
use crate::backend::redis::pool::Pool;
use crate::backend::redis::reply::{server_time, unexpected};
use crate::error::LockError;
use crate::telemetry::LockEvent;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::key::LockKey;
use lock_protocol::loss::LossReason;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::ttl::whole_millis;

pub(super) struct WatchMulti {
    client: Arc<RedisClient>,
    pool: Pool,
}

/// The outcome of a change.
struct Changed {
    /// What the key had instead of this owner, if it had another one.
    lost: Option<LossReason>,
    /// When the change was sent.
    sent: Moment,
    server_ms: ServerMs,
    /// The server process that replied.
    run_id: u64,
}

impl WatchMulti {
    pub(super) fn new(client: Arc<RedisClient>, connector: Connector) -> Self {
        Self {
            client,
            pool: Pool::new(connector),
        }
    }

    pub(super) fn retire_older(&self) {
        self.pool.retire_older();
    }

    /// Renews one lease after another: transactions on one connection cannot overlap.
    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        owner: impl Fn(OwnerId) -> String,
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let deadline = Deadline::after(Clock::System, limit);
        let mut outcomes = Vec::with_capacity(renewals.len());
        for renewal in renewals {
            let ttl = whole_millis(renewal.ttl);
            let key = renewal.key.as_str();
            let change = [redis::cmd("PEXPIRE").arg(key).arg(ttl).clone()];
            let left = deadline.left();
            let owner = owner(renewal.owner_id);
            let changed = self.change(&renewal.key, &owner, &change, left).await;
            outcomes.push(
                changed.map(|changed| {
                    RenewOutcome::unless_lost(changed.lost, renewal.ttl, changed.sent)
                }),
            );
        }
        outcomes
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        owner: &str,
        no_owner: &str,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let key = release_request.key.as_str();
        let change = match release_request.min_hold_ms(Clock::System.now()) {
            0 => vec![redis::cmd("DEL").arg(key).clone()],
            min_hold => vec![
                // Without an owner: a renewal that this release has overtaken must not extend the
                // lease.
                redis::cmd("SET")
                    .arg(key)
                    .arg(no_owner)
                    .arg("KEEPTTL")
                    .clone(),
                // `LT`: never longer than the lease was.
                redis::cmd("PEXPIRE")
                    .arg(key)
                    .arg(min_hold)
                    .arg("LT")
                    .clone(),
            ],
        };
        let changed = self
            .change(&release_request.key, owner, &change, limit)
            .await?;
        let was_owner = changed.lost.is_none();
        let outcome = ReleaseOutcome::without_waiters(was_owner, changed.server_ms);
        Ok(outcome.told_by(changed.run_id))
    }

    /// Changes the key if it still has this owner. Tries again when another client touched the key
    /// in between: the owner may still be the same.
    async fn change(
        &self,
        key: &LockKey,
        owner: &str,
        change: &[Cmd],
        limit: Duration,
    ) -> Result<Changed, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.pool.for_current_runtime(limit).await?;
        loop {
            // Unlocked between two tries, so that a busy key does not block the transactions of
            // others.
            let _turn = tokio::time::timeout(deadline.left(), connection.turn.lock())
                .await
                .map_err(|_| timed_out("other transactions are running"))?;
            let left = deadline.left();
            if left.is_zero() {
                return Err(timed_out("other clients keep changing the key"));
            }
            if let Some(changed) = self
                .try_change(&connection, key, owner, change, left)
                .await?
            {
                return Ok(changed);
            }
            let reporter = &self.client.reporter;
            let lock = reporter.id(key);
            reporter.emit(&LockEvent::TransactionRepeated { lock });
        }
    }

    /// Tries the transaction once. Returns `None` if another client touched the key in between.
    async fn try_change(
        &self,
        connection: &Connection,
        key: &LockKey,
        owner: &str,
        change: &[Cmd],
        limit: Duration,
    ) -> Result<Option<Changed>, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let server_error = |error: RedisError| server_error(connection, key, &error);
        let mut inspect = Pipeline::with_capacity(2);
        inspect.cmd("WATCH").arg(key.as_str());
        // More bytes than the owner has: a longer value belongs to another holder.
        inspect
            .cmd("GETRANGE")
            .arg(key.as_str())
            .arg(0)
            .arg(owner.len().max(VALUE_LIMIT));
        let [watching, value] = call(connection, &mut inspect, limit).await?;
        watching.map_err(server_error)?;
        let lost = match value {
            Ok(Value::BulkString(value)) if value == owner.as_bytes() => None,
            // Without the key, the server returns an empty text.
            Ok(Value::BulkString(value)) => {
                let value = String::from_utf8_lossy(&value);
                let found = Some(&*value).filter(|value| !value.is_empty());
                Some(LossReason::from_value(found))
            }
            Ok(_) => return Err(unexpected()),
            Err(error) if is_wrong_type(&error) => Some(LossReason::Replaced),
            Err(error) => return Err(server_error(error)),
        };
        let was_owner = lost.is_none();
        let mut transaction = Pipeline::with_capacity(5);
        transaction.cmd("MULTI");
        if was_owner {
            for command in change {
                transaction.add_command(command.clone());
            }
        } else {
            // The transaction needs a command, and there is nothing to change.
            transaction.cmd("TIME");
        }
        transaction.cmd("EXEC").cmd("TIME");
        let sent = Clock::System.now();
        transaction.ignore_errors();
        let mut replies = connection.call_all(&transaction, deadline.left()).await?;
        let time = replies.pop().ok_or_else(unexpected)?;
        let executed = replies.pop().ok_or_else(unexpected)?;
        for queued in replies {
            // The error of a queued command is more precise than the error of EXEC.
            queued.map_err(server_error)?;
        }
        let executed = executed.map_err(server_error)?;
        let server_us = server_time(time.map_err(server_error)?)?;
        self.client.record_server_time(connection, sent, server_us);
        let changed = Changed {
            lost,
            sent,
            server_ms: ServerMs::from_micros(server_us),
            run_id: connection.first.run_id,
        };
        // A touched key only matters if the transaction was to change it.
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
