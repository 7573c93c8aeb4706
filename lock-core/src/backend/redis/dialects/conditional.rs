//! Releases and renews by commands of the server that compare the owner: `SET .. IFEQ`, and `DELEX`
//! or `DELIFEQ`.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};

use super::owner::VALUE_LIMIT;
use crate::backend::Renewal;
use crate::backend::redis::abilities::{
    DeleteCommand, OpenQuestion, OwnerCheck, ask_commands, ask_scripts, refuses_command,
};
use crate::backend::redis::client::{RedisClient, server_error};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::errors::{
    is_no_permission, is_out_of_memory, is_wrong_type, no_owner_commands, rejected,
};
use crate::backend::redis::reply::{server_time, unexpected};
use crate::error::LockError;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::dialect::ReleaseMethod;
use lock_protocol::key::LockKey;
use lock_protocol::loss::LossReason;
use lock_protocol::ttl::whole_millis;

pub(super) struct Conditionals {
    client: Arc<RedisClient>,
}

/// What the server did with a command that checks the owner.
#[derive(Debug)]
pub(super) enum Conditional<T> {
    Done(T),
    /// The server refused the command, which had no effect. Another method may work.
    Refused {
        error: LockError,
        is_lasting: bool,
    },
}

type Replies = Vec<Result<Value, RedisError>>;

impl Conditionals {
    pub(super) fn new(client: Arc<RedisClient>) -> Self {
        Self { client }
    }

    /// Returns how the connection checks the owner. Asks the server what is not known yet: the
    /// handshake asks only for the dialect of the manager.
    pub(super) async fn owner_check(
        &self,
        connection: &Connection,
        release: ReleaseMethod,
        limit: Duration,
    ) -> Result<OwnerCheck, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        loop {
            match connection.abilities.owner_check(release) {
                Ok(check) => return Ok(check),
                Err(question) => self.ask(connection, release, question, deadline).await?,
            }
        }
    }

    /// As [`owner_check`](Self::owner_check), without commands of the server.
    pub(super) async fn without_commands(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<OwnerCheck, LockError> {
        let (deadline, release) = (Deadline::after(Clock::System, limit), ReleaseMethod::Auto);
        loop {
            match connection.abilities.without_commands() {
                Ok(check) => return Ok(check),
                Err(question) => self.ask(connection, release, question, deadline).await?,
            }
        }
    }

    async fn ask(
        &self,
        connection: &Connection,
        release: ReleaseMethod,
        question: OpenQuestion,
        deadline: Deadline,
    ) -> Result<(), LockError> {
        let abilities = &connection.abilities;
        let rejected = |error: RedisError| rejected(connection.user.as_deref(), &error);
        match question {
            OpenQuestion::Unsupported => Err(no_owner_commands(&connection.node.text)),
            OpenQuestion::Commands => {
                let reply = connection.call(&ask_commands(), deadline.left()).await?;
                if let (ReleaseMethod::Native, Err(error)) = (release, &reply)
                    && is_no_permission(error)
                {
                    return reply.map(drop).map_err(rejected);
                }
                abilities.record_commands(reply).map_err(rejected)
            }
            OpenQuestion::Scripts => {
                let reply = connection.call(&ask_scripts(), deadline.left()).await?;
                abilities.record_scripts(reply).map_err(rejected)
            }
        }
    }

    /// Renews leases in one pipeline. Returns one outcome for each, in order. Reads the keys of lost
    /// leases in a second one.
    pub(super) async fn renew(
        &self,
        connection: &Connection,
        renewals: &[&Renewal],
        owners: &[String],
        limit: Duration,
    ) -> Vec<Result<Conditional<RenewOutcome>, LockError>> {
        let deadline = Deadline::after(Clock::System, limit);
        let changed_at = self.client.server_changed_at(connection);
        let command = |(renewal, owner): (&&Renewal, &String)| {
            set_if_owner(&renewal.key, owner, owner, whole_millis(renewal.ttl))
        };
        let commands: Vec<_> = renewals.iter().zip(owners).map(command).collect();
        let sent = Clock::System.now();
        let replies = match self.send(connection, &commands, deadline.left()).await {
            Ok((replies, _)) => replies,
            Err(error) => return renewals.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut outcomes = Vec::with_capacity(renewals.len());
        for (reply, renewal) in replies.into_iter().zip(renewals) {
            let lost = match was_owner(connection, &renewal.key, reply) {
                Ok(Conditional::Done(true)) => Ok(None),
                Ok(Conditional::Done(false)) => {
                    let found = self.loss(connection, &renewal.key, deadline.left()).await;
                    found.map(Some)
                }
                Ok(Conditional::Refused { error, is_lasting }) => {
                    outcomes.push(Ok(Conditional::Refused { error, is_lasting }));
                    continue;
                }
                Err(error) => Err(error),
            };
            outcomes.push(lost.map(|lost| {
                let outcome = RenewOutcome::unless_lost(lost, renewal.ttl, sent);
                let is_older = changed_at.is_some_and(|changed| renewal.confirmed_at < changed);
                Conditional::Done(if is_older {
                    outcome.map_loss(LossReason::after_server_change)
                } else {
                    outcome
                })
            }));
        }
        outcomes
    }

    /// Returns why a lock was lost, by the content of its key.
    async fn loss(
        &self,
        connection: &Connection,
        key: &LockKey,
        limit: Duration,
    ) -> Result<LossReason, LockError> {
        let mut inspect = redis::cmd("GETRANGE");
        inspect.arg(key.as_str()).arg(0).arg(VALUE_LIMIT - 1);
        match connection.call(&inspect, limit).await? {
            // Without the key, the server returns an empty text.
            Ok(Value::BulkString(value)) => {
                let value = String::from_utf8_lossy(&value);
                let found = Some(&*value).filter(|value| !value.is_empty());
                Ok(LossReason::from_value(found))
            }
            Ok(_) => Err(unexpected()),
            Err(error) if is_wrong_type(&error) => Ok(LossReason::Replaced),
            Err(error) => Err(server_error(connection, key, &error)),
        }
    }

    /// Releases locks in one pipeline; those with a minimum hold need a second one. Returns one
    /// outcome for each, in order.
    pub(super) async fn release(
        &self,
        connection: &Connection,
        delete: DeleteCommand,
        requests: &[&ReleaseRequest],
        owners: &[String],
        no_owner: &str,
        limit: Duration,
    ) -> Vec<Result<Conditional<ReleaseOutcome>, LockError>> {
        let deadline = Deadline::after(Clock::System, limit);
        let now = Clock::System.now();
        let command = |(request, owner): (&&ReleaseRequest, &String)| {
            if request.min_hold_ms(now) == 0 {
                delete_if_owner(delete, &request.key, owner)
            } else {
                redis::cmd("PTTL").arg(request.key.as_str()).clone()
            }
        };
        let commands: Vec<_> = requests.iter().zip(owners).map(command).collect();
        let (replies, server_ms) = match self.send(connection, &commands, deadline.left()).await {
            Ok(sent) => sent,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut outcomes = Vec::with_capacity(requests.len());
        for ((reply, request), owner) in replies.into_iter().zip(requests).zip(owners) {
            let min_hold = request.min_hold_ms(now);
            outcomes.push(if min_hold == 0 {
                let checked = was_owner(connection, &request.key, reply);
                checked.map(|checked| checked.released(connection.first.run_id, server_ms))
            } else {
                let left = deadline.left();
                self.keep(
                    connection,
                    request,
                    [owner, no_owner],
                    min_hold,
                    reply,
                    left,
                )
                .await
            });
        }
        outcomes
    }

    /// Keeps the key for `min_hold`, but no longer than its lease. `pttl` is the reply to PTTL.
    async fn keep(
        &self,
        connection: &Connection,
        request: &ReleaseRequest,
        [owner, no_owner]: [&str; 2],
        min_hold: u64,
        pttl: Result<Value, RedisError>,
        limit: Duration,
    ) -> Result<Conditional<ReleaseOutcome>, LockError> {
        let key = &request.key;
        let pttl = pttl.map_err(|error| server_error(connection, key, &error))?;
        let pttl: i64 = redis::from_redis_value(pttl).map_err(|_| unexpected())?;
        // Negative without an expiry, and without the key: then the next command finds no owner.
        let min_hold = u64::try_from(pttl).map_or(min_hold, |left| min_hold.min(left));
        // Without an owner: a renewal that this release has overtaken must not extend the lease.
        let keep = set_if_owner(key, owner, no_owner, min_hold.max(1));
        let (replies, server_ms) = self.send(connection, &[keep], limit).await?;
        let reply = replies.into_iter().next().ok_or_else(unexpected)?;
        let checked = was_owner(connection, key, reply)?;
        Ok(checked.released(connection.first.run_id, server_ms))
    }

    /// Sends commands and TIME in one pipeline. Returns the replies to the commands, and the server's
    /// time.
    async fn send(
        &self,
        connection: &Connection,
        commands: &[Cmd],
        limit: Duration,
    ) -> Result<(Replies, ServerMs), LockError> {
        let mut pipeline = Pipeline::with_capacity(commands.len() + 1);
        for command in commands {
            pipeline.add_command(command.clone());
        }
        pipeline.cmd("TIME");
        pipeline.ignore_errors();
        let sent: Moment = Clock::System.now();
        let mut replies = connection.call_all(&pipeline, limit).await?;
        let time = replies.pop().ok_or_else(unexpected)?;
        let time = time.map_err(|error| rejected(connection.user.as_deref(), &error))?;
        let server_us = server_time(time)?;
        self.client.record_server_time(connection, sent, server_us);
        Ok((replies, ServerMs::from_micros(server_us)))
    }
}

impl Conditional<bool> {
    fn released(self, run_id: u64, server_ms: ServerMs) -> Conditional<ReleaseOutcome> {
        match self {
            Self::Done(was_owner) => {
                let outcome = ReleaseOutcome::without_waiters(was_owner, server_ms);
                Conditional::Done(outcome.told_by(run_id))
            }
            Self::Refused { error, is_lasting } => Conditional::Refused { error, is_lasting },
        }
    }
}

/// Returns the command that replaces the owner and sets the expiry. Without an expiry of its own, it
/// would remove that of the key.
fn set_if_owner(key: &LockKey, owner: &str, new: &str, ttl: u64) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key.as_str()).arg(new);
    command.arg("IFEQ").arg(owner).arg("PX").arg(ttl);
    command
}

fn delete_if_owner(delete: DeleteCommand, key: &LockKey, owner: &str) -> Cmd {
    let mut command;
    match delete {
        DeleteCommand::Delex => {
            command = redis::cmd("DELEX");
            command.arg(key.as_str()).arg("IFEQ").arg(owner);
        }
        DeleteCommand::Delifeq => {
            command = redis::cmd("DELIFEQ");
            command.arg(key.as_str()).arg(owner);
        }
    }
    command
}

/// Reads whether the key had the owner.
fn was_owner(
    connection: &Connection,
    key: &LockKey,
    reply: Result<Value, RedisError>,
) -> Result<Conditional<bool>, LockError> {
    let error = match reply {
        Ok(Value::Okay | Value::Int(1)) => return Ok(Conditional::Done(true)),
        Ok(Value::Nil | Value::Int(0)) => return Ok(Conditional::Done(false)),
        Ok(_) => return Err(unexpected()),
        Err(error) => error,
    };
    if is_of_other_type(&error) {
        return Ok(Conditional::Done(false));
    }
    let is_lasting = refuses_command(&error);
    if !is_lasting && !is_out_of_memory(&error) {
        return Err(server_error(connection, key, &error));
    }
    let error = if is_lasting && !is_no_permission(&error) {
        no_owner_commands(&connection.node.text)
    } else {
        server_error(connection, key, &error)
    };
    Ok(Conditional::Refused { error, is_lasting })
}

/// Returns whether the key has another type than a string. Redis says it in its own words.
fn is_of_other_type(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    is_wrong_type(error) || text.contains("should be of string type")
}
