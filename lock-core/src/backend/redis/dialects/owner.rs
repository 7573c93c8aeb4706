//! The dialects in which the value of the key is its owner.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tracing::warn;

use super::found::{Found, where_an_owner_belongs};
use super::take::take;
use crate::backend::redis::connection::Connection;
use crate::backend::redis::fault::is_wrong_type;
use crate::backend::redis::reply::{self, Timed, server_time, unexpected};
use crate::backend::redis::scripts::{OWNER_EXTEND, OWNER_RELEASE, OWNER_REPAIR, SETNX_EXPIRE};
use crate::backend::redis::server::{Call, NotAfter, Server, refused};
use crate::backend::{Asked, Attempt, Ending, Released, Renewal, Renewed};
use crate::clock::{Clock, Moment, ServerMs};
use crate::error::LockError;
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
    /// The beginning of the value, which need not be text.
    bytes: Vec<u8>,
    sent: Moment,
    server_ms: ServerMs,
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

    /// What stands in a key that stays locked after its release.
    pub(super) fn nobody(&self) -> String {
        self.owner(Nonce::nobody())
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
            None => busy(attempt, &look.found, look.server_ms),
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
        let ttl = attempt.terms.ttl;
        let ttl_ms = ttl.as_millis();
        let mut take = redis::cmd("SETNX");
        take.arg(attempt.key.as_str()).arg(&owner);
        let look = self.take_or_look(attempt, connection, take, limit).await?;
        let key = attempt.key.clone();
        let left = until.since(Clock::System.now());
        if look.taken || look.found.is_by(&owner) {
            let args = [owner, ttl_ms.to_string()];
            let script = &OWNER_EXTEND;
            let expires = self
                .server
                .ask(connection, script, &key, &args, reply::was_ours, left)
                .await;
            let expires = match expires {
                Ok(expires) => expires,
                Err(error) => {
                    if error.is_refused_for_good() {
                        // Nor can it be released: it is at least not to stay for ever.
                        let mut expire = redis::cmd("PEXPIRE");
                        expire.arg(key.as_str()).arg(ttl_ms).arg("NX");
                        let left = until.since(Clock::System.now());
                        let _set_or_not = connection.call(&expire, left).await;
                    }
                    return Err(error);
                }
            };
            if expires.it {
                return Ok(Asked::Held {
                    token: None,
                    sent: expires.sent,
                    remaining: ttl.as_duration(),
                });
            }
            return busy(attempt, &Found::Nothing, expires.server_ms);
        }
        let asked = busy(attempt, &look.found, look.server_ms)?;
        let Asked::Busy {
            ahead: Ahead::NoExpiry,
            holder,
        } = &asked
        else {
            return Ok(asked);
        };
        let args = [look.bytes, ttl_ms.to_string().into_bytes()];
        let script = &OWNER_REPAIR;
        let repaired = self
            .server
            .ask(connection, script, &key, &args, reply::was_ours, left)
            .await?;
        if repaired.it {
            self.server.counters.trace(|| {
                warn!(%key, "a lock without an expiry was given one: its holder died, or is slow");
            });
        }
        Ok(Asked::Busy {
            ahead: Ahead::Polled {
                ends: repaired.sent.plus(ttl.as_duration()),
            },
            holder: holder.clone(),
        })
    }

    /// `SETNX` and `EXPIRE` in one script.
    pub(super) async fn script(
        &self,
        attempt: &mut Attempt,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Asked, LockError> {
        let owner = self.owner(attempt.nonce);
        let seconds = attempt.terms.ttl.as_duration().as_secs();
        let args = |timing: NotAfter| {
            vec![
                owner.clone(),
                seconds.to_string(),
                timing.not_after_ms.to_string(),
            ]
        };
        let server = &self.server;
        let taken = take(server, attempt, connection, &SETNX_EXPIRE, args, limit).await?;
        match taken.got {
            Ok(remaining) => Ok(Asked::Held {
                token: None,
                sent: taken.sent,
                remaining,
            }),
            Err(found) => busy(attempt, &found, taken.server_ms),
        }
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
        let refused = |error: RedisError| refused(connection, &key, &error);
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
        let mut bytes = Vec::new();
        let found = match value {
            _ if pttl == -2 => Found::Nothing,
            Ok(value) => {
                bytes = read(value)?;
                Found::Value {
                    text: String::from_utf8_lossy(&bytes).into_owned(),
                    remaining: u64::try_from(pttl).ok().map(Duration::from_millis),
                }
            }
            Err(error) if is_wrong_type(&error) => {
                let mut kind = redis::cmd("TYPE");
                kind.arg(key.as_str());
                let left = until.since(Clock::System.now());
                let kind = connection.call(&kind, left).await?.map_err(refused)?;
                let kind: String = read(kind)?;
                match kind.as_str() {
                    // Another one than a moment ago.
                    "none" | "string" => Found::Nothing,
                    _ => Found::Type(kind),
                }
            }
            Err(error) => return Err(refused(error)),
        };
        Ok(Look {
            taken,
            found,
            bytes,
            sent,
            server_ms: ServerMs::from_micros(server_us),
        })
    }

    pub(super) async fn extend(&self, renewals: &[Renewal], limit: Duration) -> Vec<Renewed> {
        let args = |renewal: &Renewal, _| {
            let ttl = whole_millis(renewal.ttl);
            vec![self.owner(renewal.nonce), ttl.to_string()]
        };
        let read = |renewal: &Renewal, _, sent, reply| {
            let Timed { it, server_us } = reply::was_ours(reply)?;
            let it = Renewed::if_ours(it, renewal, sent);
            Ok(Timed { it, server_us })
        };
        self.server
            .renew_each(&OWNER_EXTEND, renewals, args, read, limit)
            .await
    }

    pub(super) async fn take_back(
        &self,
        ending: &Ending,
        limit: Duration,
    ) -> Result<Released, LockError> {
        let until = Clock::System.now().plus(limit);
        let connection = self.server.connection_for(ending, limit).await?;
        let now = Clock::System.now();
        let args = self.release_args(ending, now);
        let (script, key, left) = (&OWNER_RELEASE, &ending.key, until.since(now));
        let asked = self
            .server
            .ask(&connection, script, key, &args, reply::was_ours, left)
            .await?;
        Ok(Released::without_waiters(asked.it, asked.server_ms))
    }

    /// Many releases in one pipeline.
    pub(super) async fn take_back_all(
        &self,
        endings: &[Ending],
        limit: Duration,
    ) -> Vec<Result<Released, LockError>> {
        if endings.is_empty() {
            return Vec::new();
        }
        let until = Clock::System.now().plus(limit);
        let connection = match self.server.connections.here(limit).await {
            Ok(connection) => connection,
            Err(error) => return endings.iter().map(|_| Err(error.clone())).collect(),
        };
        let now = Clock::System.now();
        let calls: Vec<_> = endings
            .iter()
            .map(|ending| Call {
                key: &ending.key,
                keys: vec![ending.key.as_str()],
            })
            .collect();
        let write_args = |at: usize, command: &mut Cmd| {
            command.arg(&self.release_args(&endings[at], now));
        };
        let read = |_, _, reply| {
            let Timed { it, server_us } = reply::was_ours(reply)?;
            let it = Released::without_waiters(it, ServerMs::from_micros(server_us));
            Ok(Timed { it, server_us })
        };
        let left = until.since(now);
        self.server
            .run_each(&connection, &OWNER_RELEASE, &calls, write_args, read, left)
            .await
    }

    fn release_args(&self, ending: &Ending, now: Moment) -> [String; 3] {
        let keep = ending.keep_ms(now).to_string();
        [self.owner(ending.nonce), keep, self.nobody()]
    }
}

/// Somebody else has it, or something is wrong with what stands there.
fn busy(attempt: &mut Attempt, found: &Found, server_ms: ServerMs) -> Result<Asked, LockError> {
    attempt.out();
    where_an_owner_belongs(&attempt.key, found, server_ms, Clock::System.now())
}

fn read<T: redis::FromRedisValue>(value: Value) -> Result<T, LockError> {
    T::from_redis_value(value).map_err(|_| unexpected())
}
