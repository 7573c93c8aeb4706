//! The dialects in which the value of the key is its owner.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};

use super::acquire::acquire_by_script;
use super::found::{FoundValue, expect_owner};
use super::owner_texts::OwnerTexts;
use crate::backend::Renewal;
use crate::backend::redis::client::{RedisClient, server_error};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::errors::is_wrong_type;
use crate::backend::redis::reply::{self, ScriptReply, server_time, unexpected};
use crate::backend::redis::scripts::{OWNER_RELEASE, OWNER_RENEW, OWNER_REPAIR, SETNX_EXPIRE};
use crate::error::LockError;
use crate::telemetry::LockEvent;
use lock_protocol::acquisition::{
    AcquireOutcome, Failure, FailureClass, RenewOutcome, SentAcquires,
};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::clock_sync::NotAfter;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::poll_schedule::HolderExpiry;
use lock_protocol::resp::LOCK_REPLY;

/// The bytes of a value that are read: more than any owner of this library has.
pub(super) const VALUE_LIMIT: usize = 200;

pub(super) struct Owners {
    client: Arc<RedisClient>,
    texts: OwnerTexts,
}

/// The reply to a command that sets the key if it is free.
struct Inspection {
    is_set: bool,
    found: FoundValue,
    /// The beginning of the value, which may not be text.
    bytes: Vec<u8>,
    sent: Moment,
    server_ms: ServerMs,
}

impl Owners {
    pub(super) fn new(client: Arc<RedisClient>, label: Arc<str>) -> Self {
        Self {
            client,
            texts: OwnerTexts::new(label),
        }
    }

    /// Returns the value that only this acquisition writes.
    pub(super) fn owner(&self, owner_id: OwnerId) -> String {
        self.texts.of(owner_id)
    }

    /// Returns the value of a key that stays locked after its release.
    pub(super) fn no_owner(&self) -> String {
        self.texts.without_owner()
    }

    /// Acquires by `SET key owner NX PX ttl`.
    pub(super) async fn set_nx_px(
        &self,
        sent: &mut SentAcquires,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let owner = self.owner(sent.owner_id);
        let ttl = sent.lease_config.ttl;
        let mut command = redis::cmd("SET");
        command
            .arg(sent.key.as_str())
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(ttl.as_millis());
        let inspected = self
            .set_or_inspect(sent, connection, command, limit)
            .await?;
        // An earlier copy may have set the key, and its reply may be lost.
        let remaining = if inspected.is_set {
            Some(ttl.as_duration())
        } else {
            inspected
                .found
                .remaining()
                .filter(|_| inspected.found.is_by(&owner))
        };
        match remaining {
            Some(remaining) => Ok(AcquireOutcome::Held {
                token: None,
                sent: inspected.sent,
                remaining: remaining.min(ttl.as_duration()),
            }),
            None => busy(sent, &inspected.found, inspected.server_ms),
        }
    }

    /// Acquires by `SETNX key owner`, then sets the expiry. The script for the expiry compares the
    /// owner: this process may have stopped in between, for longer than an expiry that another
    /// client gave to the key.
    pub(super) async fn setnx(
        &self,
        sent: &mut SentAcquires,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let owner = self.owner(sent.owner_id);
        let ttl = sent.lease_config.ttl;
        let ttl_ms = ttl.as_millis();
        let mut setnx = redis::cmd("SETNX");
        setnx.arg(sent.key.as_str()).arg(&owner);
        let inspected = self.set_or_inspect(sent, connection, setnx, limit).await?;
        let key = sent.key.clone();
        let left = deadline.left();
        if inspected.is_set || inspected.found.is_by(&owner) {
            let args = [owner, ttl_ms.to_string()];
            let script = &OWNER_RENEW;
            let expires = self
                .client
                .call_script(
                    connection,
                    script,
                    &key,
                    &[key.as_str()],
                    &args,
                    reply::was_owner,
                    LOCK_REPLY,
                    left,
                )
                .await;
            let (sent_at, expires) = match expires {
                Ok(expires) => expires,
                Err(error) => {
                    if error.class() == FailureClass::Forbidden {
                        // Such a lock cannot be released either, and must at least expire.
                        let mut expire = redis::cmd("PEXPIRE");
                        expire.arg(key.as_str()).arg(ttl_ms).arg("NX");
                        let left = deadline.left();
                        let _set_or_not = connection.call(&expire, left).await;
                    }
                    return Err(error);
                }
            };
            if expires.value {
                return Ok(AcquireOutcome::Held {
                    token: None,
                    sent: sent_at,
                    remaining: ttl.as_duration(),
                });
            }
            return busy(sent, &FoundValue::Nothing, expires.server_ms());
        }
        let outcome = busy(sent, &inspected.found, inspected.server_ms)?;
        let AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::NoExpiry,
            holder,
        } = &outcome
        else {
            return Ok(outcome);
        };
        let args = [inspected.bytes, ttl_ms.to_string().into_bytes()];
        let script = &OWNER_REPAIR;
        let (sent_at, repaired) = self
            .client
            .call_script(
                connection,
                script,
                &key,
                &[key.as_str()],
                &args,
                reply::was_owner,
                LOCK_REPLY,
                left,
            )
            .await?;
        if repaired.value {
            let reporter = &self.client.reporter;
            let lock = reporter.id(&key);
            reporter.emit(&LockEvent::ExpiryRepaired { lock });
        }
        Ok(AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::Polled {
                ends: sent_at.plus(ttl.as_duration()),
            },
            holder: holder.clone(),
        })
    }

    /// Acquires by `SETNX` and `EXPIRE` in one script.
    pub(super) async fn script(
        &self,
        sent: &mut SentAcquires,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let owner = self.owner(sent.owner_id);
        let seconds = sent.lease_config.ttl.as_duration().as_secs();
        let args = |timing: NotAfter| {
            vec![
                owner.clone(),
                seconds.to_string(),
                timing.not_after_ms.to_string(),
            ]
        };
        let client = &self.client;
        let key = sent.key.clone();
        let (script, keys) = (&SETNX_EXPIRE, &[key.as_str()]);
        let outcome =
            acquire_by_script(client, sent, connection, script, keys, args, limit).await?;
        let Some(outcome) = outcome else {
            return Ok(AcquireOutcome::Late);
        };
        match outcome.result {
            Ok(remaining) => Ok(AcquireOutcome::Held {
                token: None,
                sent: outcome.sent,
                remaining,
            }),
            Err(found) => busy(sent, &found, outcome.server_ms),
        }
    }

    /// Sends the command that sets the key, and reads the key's value, in one pipeline.
    async fn set_or_inspect(
        &self,
        sent: &mut SentAcquires,
        connection: &Connection,
        set_command: Cmd,
        limit: Duration,
    ) -> Result<Inspection, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let key = sent.key.clone();
        let mut pipeline = Pipeline::with_capacity(4);
        pipeline.add_command(set_command);
        pipeline.cmd("PTTL").arg(key.as_str());
        pipeline
            .cmd("GETRANGE")
            .arg(key.as_str())
            .arg(0)
            .arg(VALUE_LIMIT - 1);
        pipeline.cmd("TIME");
        pipeline.ignore_errors();
        let sent_at = Clock::System.now();
        // Such a command has no time limit on the server. If a late copy acquires the lock, the
        // releases that are repeated until then remove it, or it expires after its ttl.
        let not_after = self.client.not_after(connection, sent_at).not_after_ms;
        let in_flight = self.client.unconfirmed(connection, not_after, sent_at);
        let in_flight = sent.on_send_without_entry(connection.origin, in_flight);
        let replies = connection.call_all(&pipeline, deadline.left()).await?;
        sent.on_any_reply(&in_flight);
        let server_error = |error: RedisError| server_error(connection, &key, &error);
        let [set_reply, pttl, value, time]: [Result<Value, RedisError>; 4] =
            replies.try_into().map_err(|_| unexpected())?;
        let is_set = match set_reply.map_err(server_error)? {
            Value::Okay | Value::Int(1) => true,
            Value::Nil | Value::Int(0) => false,
            _ => return Err(unexpected()),
        };
        let server_us = server_time(time.map_err(server_error)?)?;
        self.client
            .record_server_time(connection, sent_at, server_us);
        let pttl: i64 = read(pttl.map_err(server_error)?)?;
        let mut bytes = Vec::new();
        let found = match value {
            _ if pttl == -2 => FoundValue::Nothing,
            Ok(value) => {
                bytes = read(value)?;
                FoundValue::Value {
                    text: String::from_utf8_lossy(&bytes).into_owned(),
                    remaining: u64::try_from(pttl).ok().map(Duration::from_millis),
                }
            }
            Err(error) if is_wrong_type(&error) => {
                let mut kind = redis::cmd("TYPE");
                kind.arg(key.as_str());
                let left = deadline.left();
                let kind = connection.call(&kind, left).await?.map_err(server_error)?;
                let kind: String = read(kind)?;
                match kind.as_str() {
                    // Another holder has set or deleted the key meanwhile.
                    "none" | "string" => FoundValue::Nothing,
                    _ => FoundValue::Type(kind),
                }
            }
            Err(error) => return Err(server_error(error)),
        };
        Ok(Inspection {
            is_set,
            found,
            bytes,
            sent: sent_at,
            server_ms: ServerMs::from_micros(server_us),
        })
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let (client, script) = (&self.client, &OWNER_RENEW);
        self.texts.renew(client, script, renewals, limit).await
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(release_request, limit).await?;
        let now = Clock::System.now();
        let args = self.release_args(release_request, now);
        let (script, key, left) = (&OWNER_RELEASE, &release_request.key, deadline.left());
        let (_, reply) = self
            .client
            .call_script(
                &connection,
                script,
                key,
                &[key.as_str()],
                &args,
                reply::was_owner,
                LOCK_REPLY,
                left,
            )
            .await?;
        let outcome = ReleaseOutcome::without_waiters(reply.value, reply.server_ms());
        Ok(outcome.told_by(connection.first.run_id))
    }

    /// Sends many releases in one pipeline.
    pub(super) async fn release_all<'a>(
        &self,
        requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let write_args = |command: &mut Cmd, request: &ReleaseRequest, _: &_, now| {
            command.arg(&self.release_args(request, now));
        };
        let read = |reply| {
            let ScriptReply { value, server_us } = reply::was_owner(reply)?;
            let outcome = ReleaseOutcome::without_waiters(value, ServerMs::from_micros(server_us));
            Ok((outcome, Some(server_us)))
        };
        let keys = |request: &&'a ReleaseRequest| vec![request.key.as_str()];
        self.client
            .release_each(&OWNER_RELEASE, requests, keys, write_args, read, limit)
            .await
    }

    fn release_args(&self, release_request: &ReleaseRequest, now: Moment) -> [String; 3] {
        let min_hold = release_request.min_hold_ms(now).to_string();
        [
            self.owner(release_request.owner_id),
            min_hold,
            self.no_owner(),
        ]
    }
}

/// Returns the outcome for a key that another holder has, or the error for a foreign value.
fn busy(
    sent: &mut SentAcquires,
    found: &FoundValue,
    server_ms: ServerMs,
) -> Result<AcquireOutcome, LockError> {
    sent.on_busy();
    expect_owner(&sent.key, found, server_ms, Clock::System.now())
}

fn read<T: redis::FromRedisValue>(value: Value) -> Result<T, LockError> {
    T::from_redis_value(value).map_err(|_| unexpected())
}
