//! The dialects in which the value of the key is its owner.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};

use super::found::{Found, where_an_owner_belongs};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::fault::is_wrong_type;
use crate::backend::redis::reply::{self, Taken, Timed, server_time, unexpected};
use crate::backend::redis::scripts::{
    OWNER_EXTEND, OWNER_RELEASE, OWNER_REPAIR, SETNX_EXPIRE, Script,
};
use crate::backend::redis::server::{Call, LATE_TRIES, Server, always_late, refused};
use crate::backend::{Asked, Attempt, Ending, Released, Renewal, Renewed};
use crate::clock::{Clock, Moment};
use crate::error::LockError;
use crate::key::LockKey;
use crate::nonce::Nonce;
use crate::ttl::whole_millis;
use crate::wait::Ahead;
use crate::wire::PlainOwner;

/// As much of a value as is looked at: more than any owner of ours has.
const VALUE_LIMIT: usize = 200;

pub(super) struct Owners {
    server: Arc<Server>,
    label: Arc<str>,
}

/// The answer to a command that takes the lock when the key is free.
struct Look {
    taken: bool,
    found: Found,
    sent: Moment,
    server_ms: u64,
}

impl Owners {
    pub(super) fn new(server: Arc<Server>, label: Arc<str>) -> Self {
        Self { server, label }
    }

    /// The value that this acquisition writes, and no other one.
    pub(super) fn owner(&self, nonce: Nonce) -> String {
        let label = self.label.to_string();
        PlainOwner { nonce, label }.to_string()
    }

    /// `SET key owner NX PX ttl`.
    pub(super) async fn set_nx_px(
        &self,
        attempt: &mut Attempt,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Asked, LockError> {
        let owner = self.owner(attempt.nonce);
        let ttl = attempt.terms.ttl;
        let mut take = redis::cmd("SET");
        take.arg(attempt.key.as_str())
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(ttl.as_millis());
        let look = self.take_or_look(attempt, connection, take, limit).await?;
        // An earlier copy may have done it, and its answer be lost.
        let remaining = if look.taken {
            Some(ttl.as_duration())
        } else {
            look.found.remaining().filter(|_| look.found.is_by(&owner))
        };
        match remaining {
            Some(remaining) => Ok(Asked::Held {
                token: None,
                sent: look.sent,
                remaining: remaining.min(ttl.as_duration()),
            }),
            None => busy(attempt, &look),
        }
    }

    /// `SETNX key owner`, then the expiry. By a script that compares: the holder may have been
    /// stopped in between, for longer than the expiry that somebody else gave to its key.
    pub(super) async fn setnx(
        &self,
        attempt: &mut Attempt,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Asked, LockError> {
        let until = Clock::System.now().plus(limit);
        let owner = self.owner(attempt.nonce);
        let ttl_ms = attempt.terms.ttl.as_millis();
        let mut take = redis::cmd("SETNX");
        take.arg(attempt.key.as_str()).arg(&owner);
        let look = self.take_or_look(attempt, connection, take, limit).await?;
        let key = attempt.key.clone();
        let left = until.since(Clock::System.now());
        if look.taken || look.found.is_by(&owner) {
            let args = [owner, ttl_ms.to_string()];
            let (sent, done) = self
                .compare(&OWNER_EXTEND, &key, connection, &args, left)
                .await?;
            if done {
                return Ok(Asked::Held {
                    token: None,
                    sent,
                    remaining: attempt.terms.ttl.as_duration(),
                });
            }
            attempt.out();
            return Ok(Asked::Busy {
                ahead: Ahead::Polled { ends: sent },
                holder: None,
            });
        }
        let asked = busy(attempt, &look)?;
        let Asked::Busy {
            ahead: Ahead::NoExpiry,
            holder,
        } = asked
        else {
            return Ok(asked);
        };
        let Found::Value { text, .. } = look.found else {
            return Err(unexpected());
        };
        let args = [text, ttl_ms.to_string()];
        let (sent, _repaired) = self
            .compare(&OWNER_REPAIR, &key, connection, &args, left)
            .await?;
        tracing::warn!(%key, "a lock without an expiry was given one: its holder died, or is slow");
        Ok(Asked::Busy {
            ahead: Ahead::Polled {
                ends: sent.plus(attempt.terms.ttl.as_duration()),
            },
            holder,
        })
    }

    /// `SETNX` and `EXPIRE` in one script.
    pub(super) async fn script(
        &self,
        attempt: &mut Attempt,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Asked, LockError> {
        let until = Clock::System.now().plus(limit);
        let owner = self.owner(attempt.nonce);
        let seconds = attempt.terms.ttl.as_duration().as_secs();
        for _ in 0..LATE_TRIES {
            let sent = Clock::System.now();
            let not_after = self.server.not_after(connection, sent).not_after_ms;
            let copy = attempt.sending(connection.origin, not_after);
            let key = attempt.key.clone();
            let write_args = |command: &mut Cmd| {
                command.arg(&owner).arg(seconds).arg(not_after);
            };
            let left = until.since(sent);
            let reply = self
                .server
                .run(connection, &SETNX_EXPIRE, &[key.as_str()], write_args, left)
                .await?;
            attempt.answered(&copy);
            let reply = reply.map_err(|error| refused(connection, &key, error))?;
            let Timed { it, server_us } = reply::taken(reply)?;
            self.server.told_time(connection, sent, server_us);
            let found = match it {
                Taken::Late => continue,
                Taken::Held { remaining_ms } => {
                    return Ok(Asked::Held {
                        token: None,
                        sent,
                        remaining: Duration::from_millis(remaining_ms),
                    });
                }
                Taken::Busy { holder } => Found::by_script(holder),
                Taken::Foreign { found } => Found::Type(found),
            };
            let look = Look {
                taken: false,
                found,
                sent,
                server_ms: server_us / 1000,
            };
            return busy(attempt, &look);
        }
        Err(always_late())
    }

    /// One pipeline: the command that takes, and what stands there if it did not.
    async fn take_or_look(
        &self,
        attempt: &mut Attempt,
        connection: &Connection,
        take: Cmd,
        limit: Duration,
    ) -> Result<Look, LockError> {
        let until = Clock::System.now().plus(limit);
        let key = attempt.key.clone();
        let mut pipeline = Pipeline::with_capacity(4);
        pipeline.add_command(take);
        pipeline.cmd("PTTL").arg(key.as_str());
        pipeline
            .cmd("GETRANGE")
            .arg(key.as_str())
            .arg(0)
            .arg(VALUE_LIMIT - 1);
        pipeline.cmd("TIME");
        pipeline.ignore_errors();
        let sent = Clock::System.now();
        // Such a command knows no time after which it must do nothing. What a late copy of it
        // takes is found by the releases that go on until then, or ends with its ttl.
        let not_after = self.server.not_after(connection, sent).not_after_ms;
        let copy = attempt.sending(connection.origin, not_after);
        let replies = connection.call_all(&pipeline, until.since(sent)).await?;
        attempt.answered(&copy);
        let refused = |error| refused(connection, &key, error);
        let [took, pttl, value, time]: [Result<Value, RedisError>; 4] =
            replies.try_into().map_err(|_| unexpected())?;
        let taken = match took.map_err(refused)? {
            Value::Okay | Value::Int(1) => true,
            Value::Nil | Value::Int(0) => false,
            _ => return Err(unexpected()),
        };
        let server_us = server_time(time.map_err(refused)?)?;
        self.server.told_time(connection, sent, server_us);
        let pttl: i64 = read(pttl.map_err(refused)?)?;
        let found = match value {
            _ if pttl == -2 => Found::Nothing,
            Ok(value) => Found::Value {
                text: String::from_utf8_lossy(&read::<Vec<u8>>(value)?).into_owned(),
                remaining: u64::try_from(pttl).ok().map(Duration::from_millis),
            },
            Err(error) if is_wrong_type(&error) => {
                let mut kind = redis::cmd("TYPE");
                kind.arg(key.as_str());
                let left = until.since(Clock::System.now());
                let kind = connection.call(&kind, left).await?.map_err(refused)?;
                Found::Type(read(kind)?)
            }
            Err(error) => return Err(refused(error)),
        };
        Ok(Look {
            taken,
            found,
            sent,
            server_ms: server_us / 1000,
        })
    }

    /// Runs a script that does something if the owner is still there.
    async fn compare(
        &self,
        script: &Script,
        key: &LockKey,
        connection: &Connection,
        args: &[String],
        limit: Duration,
    ) -> Result<(Moment, bool), LockError> {
        let sent = Clock::System.now();
        let write_args = |command: &mut Cmd| {
            command.arg(args);
        };
        let reply = self
            .server
            .run(connection, script, &[key.as_str()], write_args, limit)
            .await?;
        let reply = reply.map_err(|error| refused(connection, key, error))?;
        let Timed { it, server_us } = reply::was_ours(reply)?;
        self.server.told_time(connection, sent, server_us);
        Ok((sent, it))
    }

    pub(super) async fn extend(&self, renewals: &[Renewal], limit: Duration) -> Vec<Renewed> {
        if renewals.is_empty() {
            return Vec::new();
        }
        let until = Clock::System.now().plus(limit);
        let connection = match self.server.connections.here(limit).await {
            Ok(connection) => connection,
            Err(error) => return Renewed::all_failed(renewals, &error),
        };
        let left = until.since(Clock::System.now());
        let call = |renewal: &Renewal| Call {
            key: renewal.key.clone(),
            args: vec![
                self.owner(renewal.nonce),
                whole_millis(renewal.ttl).to_string(),
            ],
        };
        let calls: Vec<_> = renewals.iter().map(call).collect();
        let answers = self
            .server
            .run_each(&connection, &OWNER_EXTEND, &calls, left)
            .await;
        let read = |(renewal, (sent, answer)): (&Renewal, (Moment, Result<Value, LockError>))| {
            let Timed { it, server_us } = reply::was_ours(answer?)?;
            self.server.told_time(&connection, sent, server_us);
            Ok(Renewed::if_ours(it, renewal, sent))
        };
        renewals
            .iter()
            .zip(answers)
            .map(|answer| read(answer).unwrap_or_else(Renewed::Failed))
            .collect()
    }

    pub(super) async fn take_back(
        &self,
        ending: &Ending,
        limit: Duration,
    ) -> Result<Released, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.server.connection_for(ending, limit).await?;
        let now = Clock::System.now();
        let args = [self.owner(ending.nonce), ending.keep_ms(now).to_string()];
        let write_args = |command: &mut Cmd| {
            command.arg(&args);
        };
        let key = &ending.key;
        let reply = self
            .server
            .run(
                &connection,
                &OWNER_RELEASE,
                &[key.as_str()],
                write_args,
                until.since(now),
            )
            .await?;
        let reply = reply.map_err(|error| refused(&connection, key, error))?;
        let Timed { it, server_us } = reply::was_ours(reply)?;
        self.server.told_time(&connection, now, server_us);
        Ok(Released {
            was_ours: it,
            server_ms: server_us / 1000,
        })
    }
}

/// Somebody else has it, or something is wrong with what stands there.
fn busy(attempt: &mut Attempt, look: &Look) -> Result<Asked, LockError> {
    attempt.out();
    let now = Clock::System.now();
    where_an_owner_belongs(&attempt.key, &look.found, look.server_ms, now)
}

fn read<T: redis::FromRedisValue>(value: Value) -> Result<T, LockError> {
    T::from_redis_value(value).map_err(|_| unexpected())
}
