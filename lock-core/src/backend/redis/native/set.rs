//! Sets of native locks on one primary: one command for all of them.

use std::time::Duration;

use redis::{Cmd, RedisError, ToRedisArgs, Value};

use super::super::client::server_error;
use super::super::connection::Connection;
use super::super::reply::{self, ScriptReply, text_of};
use super::super::scripts::{ACQUIRE_ALL, RELEASE_ALL, Script, ScriptCommands};
use super::{NativeLocks, released};
use crate::backend::set::SetOutcomes;
use crate::error::LockError;
use lock_protocol::acquisition::{
    AcquireOutcome, Failure, ReplyTimes, SendContext, SentAcquires, SentCopy,
};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::NotAfter;
use lock_protocol::key::LockKey;
use lock_protocol::poll_schedule;

/// What acquire_all.lua replied.
enum SetReply {
    /// One reply for each lock, up to the first that was not acquired.
    Replies(Vec<Value>),
    /// No lock was acquired because of this one.
    NotAcquired { at: usize, reply: Value, rest: Rest },
}

/// What the command left of the locks that it could not acquire together.
#[derive(Clone, Copy)]
enum Rest {
    Undone,
    Kept,
}

impl SetReply {
    fn read(reply: Value) -> Result<Self, LockError> {
        let Value::Array(mut replies) = reply else {
            return Err(reply::unexpected());
        };
        let rest = match replies.first().and_then(text_of) {
            Some(b"undone") => Rest::Undone,
            Some(b"kept") => Rest::Kept,
            _ => return Ok(Self::Replies(replies)),
        };
        let reply = replies.pop().ok_or_else(reply::unexpected)?;
        let index = replies.pop();
        let index = index.as_ref().and_then(text_of);
        let index = index.and_then(|text| str::from_utf8(text).ok()?.parse::<usize>().ok());
        let at = index.and_then(|index| index.checked_sub(1));
        Ok(Self::NotAcquired {
            at: at.ok_or_else(reply::unexpected)?,
            reply,
            rest,
        })
    }
}

/// A command that was sent for a set, and the copies that it carried.
struct SentSet<'a> {
    connection: &'a Connection,
    copies: Vec<SentCopy>,
    sent_at: Moment,
}

impl NativeLocks {
    /// Acquires locks whose keys are in one slot, as [`Backend::acquire_set`](crate::backend::Backend) says.
    pub(in super::super) async fn acquire_set(
        &self,
        sent: &mut [&mut SentAcquires],
        limit: Duration,
    ) -> SetOutcomes {
        let count = sent.len();
        let only_first = |error| {
            let rest = std::iter::repeat_with(|| None).take(count.saturating_sub(1));
            std::iter::once(Some(Err(error))).chain(rest).collect()
        };
        self.try_acquire_set(sent, limit)
            .await
            .unwrap_or_else(only_first)
    }

    async fn try_acquire_set(
        &self,
        sent: &mut [&mut SentAcquires],
        limit: Duration,
    ) -> Result<SetOutcomes, LockError> {
        let Some(first) = sent.first() else {
            return Ok(Vec::new());
        };
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        let (mode, channel) = self.mode(first, &connection, deadline).await;
        let tries = if first.waits_until.is_none() {
            "all"
        } else {
            "go"
        };
        let now = Clock::System.now();
        let not_after = self.client.not_after(&connection, now);
        let mut copies = Vec::with_capacity(sent.len());
        for sent in sent.iter_mut() {
            let ttl = sent.lease_config.ttl;
            copies.push(sent.on_send(SendContext {
                origin: connection.origin,
                run_id: connection.process(),
                mode,
                channel: &channel,
                lease: poll_schedule::handover_lease(mode, ttl),
                now,
                not_after,
                command_timeout: self.client.command_timeout,
            }));
        }
        let call = SentSet {
            connection: &connection,
            copies,
            sent_at: now,
        };
        let keys: Vec<_> = sent.iter().flat_map(|sent| sent.key.all()).collect();
        let mut args = vec![
            (keys.len() / sent.len()).to_string(),
            not_after.not_after_ms.to_string(),
            tries.to_owned(),
        ];
        for sent in sent.iter() {
            let of_one = acquire_args(sent, &connection, not_after);
            args.push(of_one.len().to_string());
            args.extend(of_one);
        }
        let script = ACQUIRE_ALL.of(self.client.is_sharded());
        let reply = self
            .run_set(&connection, script, &keys, &args, deadline)
            .await?;
        drop(keys);
        let reply = reply.map_err(|error| call.on_refused(sent, &error))?;
        Ok(self.read_set(&call, sent, SetReply::read(reply)?))
    }

    /// Runs a script for a set by its hash, or by its text if the server does not know it.
    async fn run_set(
        &self,
        connection: &Connection,
        script: &Script,
        keys: &[&str],
        args: &[impl ToRedisArgs],
        deadline: Deadline,
    ) -> Result<Result<Value, RedisError>, LockError> {
        let form = connection.abilities.script_form();
        let write_args = |command: &mut Cmd| {
            command.arg(args);
        };
        let by_hash = script.by_hash(form, keys, write_args);
        let reply = connection.call(&by_hash, deadline.left()).await?;
        if reply
            .as_ref()
            .is_err_and(super::super::errors::is_unknown_script)
        {
            let by_text = script.by_text(form, keys, write_args);
            return connection.call(&by_text, deadline.left()).await;
        }
        Ok(reply)
    }

    /// Gives each lock its part of the reply.
    fn read_set(
        &self,
        call: &SentSet<'_>,
        sent: &mut [&mut SentAcquires],
        reply: SetReply,
    ) -> SetOutcomes {
        let mut outcomes: SetOutcomes = sent.iter().map(|_| None).collect();
        match reply {
            SetReply::Replies(replies) => {
                let tried = replies.len();
                for (at, reply) in replies.into_iter().enumerate().take(sent.len()) {
                    outcomes[at] = Some(self.read_one(call, sent, at, &reply));
                }
                for (sent, copy) in sent.iter_mut().zip(&call.copies).skip(tried) {
                    sent.on_not_run(copy);
                }
            }
            SetReply::NotAcquired { at, reply, rest } => {
                for (other, (sent, copy)) in sent.iter_mut().zip(&call.copies).enumerate() {
                    match rest {
                        _ if other == at => {}
                        Rest::Undone => sent.on_undone(copy),
                        Rest::Kept => sent.on_any_reply(copy),
                    }
                }
                if at < sent.len() {
                    outcomes[at] = Some(self.read_one(call, sent, at, &reply));
                }
            }
        }
        outcomes
    }

    fn read_one(
        &self,
        call: &SentSet<'_>,
        sent: &mut [&mut SentAcquires],
        at: usize,
        reply: &Value,
    ) -> Result<AcquireOutcome, LockError> {
        let (sent, copy) = (&mut *sent[at], &call.copies[at]);
        if let Some(error) = error_of(reply) {
            let error = server_error(call.connection, &sent.key, &error);
            sent.on_error_reply(copy, error.class());
            return Err(error);
        }
        let ScriptReply { value, server_us } = reply::acquire(text_of(reply))?;
        let (connection, sent_at) = (call.connection, call.sent_at);
        self.client
            .record_server_time(connection, sent_at, server_us);
        let times = ReplyTimes {
            sent: sent_at,
            received: Clock::System.now(),
            server_us,
            run_id: connection.process(),
        };
        Ok(sent.on_reply(copy, value, times))
    }

    /// Releases locks whose keys are in one slot by one command. Returns one outcome for each, in order.
    pub(in super::super) async fn release_set(
        &self,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let released = self.try_release_set(requests, limit).await;
        released.unwrap_or_else(|error| requests.iter().map(|_| Err(error.clone())).collect())
    }

    async fn try_release_set(
        &self,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Result<Vec<Result<ReleaseOutcome, LockError>>, LockError> {
        let Some(first) = requests.first() else {
            return Ok(Vec::new());
        };
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(first, limit).await?;
        let sent_at = Clock::System.now();
        let keys: Vec<_> = requests.iter().flat_map(|it| it.key.all()).collect();
        let mut args = vec![(keys.len() / requests.len()).to_string().into_bytes()];
        for request in requests {
            let mut of_one = Vec::new();
            self.release_args(request, &connection, sent_at, |arg| {
                of_one.push(arg.to_bytes());
            });
            args.push(of_one.len().to_string().into_bytes());
            args.extend(of_one);
        }
        let script = RELEASE_ALL.of(self.client.is_sharded());
        let reply = self
            .run_set(&connection, script, &keys, &args, deadline)
            .await?;
        let reply = reply.map_err(|error| server_error(&connection, &first.key, &error))?;
        let Value::Array(replies) = reply else {
            return Err(reply::unexpected());
        };
        if replies.len() != requests.len() {
            return Err(reply::unexpected());
        }
        let read = |(request, reply): (&&ReleaseRequest, Value)| {
            if let Some(error) = error_of(&reply) {
                return Err(server_error(&connection, &request.key, &error));
            }
            let (outcome, server_us) = released(text_of(&reply))?;
            if let Some(server_us) = server_us {
                self.client
                    .record_server_time(&connection, sent_at, server_us);
            }
            Ok(outcome.told_by(connection.first.run_id))
        };
        Ok(requests.iter().zip(replies).map(read).collect())
    }
}

impl SentSet<'_> {
    /// Records that the server refused the whole command. Returns its error, for the first lock.
    fn on_refused(&self, sent: &mut [&mut SentAcquires], error: &RedisError) -> LockError {
        let first: Option<LockKey> = sent.first().map(|sent| sent.key.clone());
        let Some(key) = first else {
            return reply::unexpected();
        };
        let error = server_error(self.connection, &key, error);
        for (sent, copy) in sent.iter_mut().zip(&self.copies) {
            sent.on_error_reply(copy, error.class());
        }
        error
    }
}

/// Returns the arguments of acquire.lua for one lock.
fn acquire_args(sent: &SentAcquires, connection: &Connection, not_after: NotAfter) -> Vec<String> {
    let entry = sent.entry();
    let mut args = vec![
        sent.owner_id.to_string(),
        sent.lease_config.ttl.as_millis().to_string(),
        connection.floor_us().to_string(),
        not_after.not_after_ms.to_string(),
        sent.label.to_string(),
        entry.map_or_else(String::new, ToString::to_string),
        connection.lead_us().to_string(),
        sent.lease_config.kind.wire().to_string(),
    ];
    args.extend(sent.earlier().iter().map(ToString::to_string));
    args
}

/// Returns the error of one lock, which is a text in the reply for the whole set.
fn error_of(reply: &Value) -> Option<RedisError> {
    let text = text_of(reply)?.strip_prefix(b"error ")?;
    let line: Vec<u8> = text
        .iter()
        .map(|byte| if byte.is_ascii_control() { b' ' } else { *byte })
        .collect();
    let encoded = [b"-", &line[..], b"\r\n"].concat();
    let parsed = redis::parse_redis_value(&encoded);
    parsed.and_then(Value::extract_error).err()
}
