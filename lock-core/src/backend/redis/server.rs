//! What the parts of a server's backend share: connections, pushes, and the server's time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, ToRedisArgs, Value};
use tokio::sync::{Notify, watch};

use super::connection::{Connection, Connector};
use super::connections::Connections;
use super::fault::{breaks_connection, is_unknown_script, is_wrong_type, lock_error};
use super::reply::Timed;
use super::scripts::Script;
use crate::backend::{Ending, Renewal, Renewed};
use crate::clock::{Clock, Moment};
use crate::error::{BackendErrorKind, LockError};
use crate::foreign;
use crate::inbox::{Inbox, locked};
use crate::key::LockKey;
use crate::lease::{Anchor, UNKNOWN_LIFE};
use crate::ttl::whole_millis;

/// What is known of the push connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Nobody has waited yet.
    Idle,
    /// Subscribed, at that life of the server.
    Up(u64),
    Down,
}

/// The state of the push connection, for those who wait.
pub(super) struct Pushes {
    pub(super) channel: String,
    line: watch::Sender<Line>,
    wanted: Notify,
}

impl Pushes {
    pub(super) fn new() -> Self {
        Self {
            channel: format!("lk1:{}", uuid::Uuid::new_v4()),
            line: watch::Sender::new(Line::Idle),
            wanted: Notify::new(),
        }
    }

    /// Sets the state, and tells the last one.
    pub(super) fn set(&self, line: Line) -> Line {
        self.line.send_replace(line)
    }

    pub(super) fn line(&self) -> Line {
        *self.line.borrow()
    }

    /// Until the first waiter asks for pushes.
    pub(super) async fn are_wanted(&self) {
        self.wanted.notified().await;
    }

    /// Whether pushes of that life of the server arrive; waits for the first subscription.
    pub(super) async fn arrive_from(&self, incarnation: u64, patience: Duration) -> bool {
        if incarnation == UNKNOWN_LIFE {
            return false;
        }
        let mut line = self.line.subscribe();
        if *line.borrow() == Line::Idle {
            self.wanted.notify_one();
            let first = line.wait_for(|line| *line != Line::Idle);
            let _known_or_given_up = tokio::time::timeout(patience, first).await;
        }
        *self.line.borrow() == Line::Up(incarnation)
    }
}

/// One server, as all runtimes of a manager see it.
pub(super) struct Server {
    pub(super) connections: Connections,
    pub(super) pushes: Pushes,
    pub(super) inbox: Arc<Inbox>,
    pub(super) command_timeout: Duration,
    anchor: Mutex<Option<Anchor>>,
}

impl Server {
    pub(super) fn new(connector: Connector, command_timeout: Duration, inbox: Arc<Inbox>) -> Self {
        Self {
            connections: Connections::new(connector),
            pushes: Pushes::new(),
            inbox,
            command_timeout,
            anchor: Mutex::default(),
        }
    }

    pub(super) fn anchor(&self) -> Option<Anchor> {
        *locked(&self.anchor)
    }

    /// A reply told the server's time.
    pub(super) fn told_time(&self, connection: &Connection, sent: Moment, server_us: u64) {
        let mut anchor = locked(&self.anchor);
        let incarnation = connection.first.incarnation;
        let older =
            anchor.is_none_or(|known| known.incarnation != incarnation || known.sent < sent);
        if older {
            *anchor = Some(Anchor {
                sent,
                server_us,
                incarnation,
            });
        }
    }

    /// The youngest time of that life of the server.
    pub(super) fn anchor_for(&self, connection: &Connection) -> Anchor {
        self.anchor()
            .filter(|anchor| anchor.incarnation == connection.first.incarnation)
            .unwrap_or(connection.first)
    }

    /// The connection for a release: that of the command which it takes back, so that it cannot
    /// overtake it, or the caller's.
    pub(super) async fn connection_for(
        &self,
        ending: &Ending,
        limit: Duration,
    ) -> Result<Arc<Connection>, LockError> {
        let same = ending
            .origin
            .and_then(|origin| self.connections.by_origin(origin));
        match same {
            Some(connection) => Ok(connection),
            None => self.connections.here(limit).await,
        }
    }

    /// Runs a script, with its text where the server forgot it. The server's own errors are
    /// the inner result.
    pub(super) async fn run(
        &self,
        connection: &Connection,
        script: &Script,
        keys: &[&str],
        write_args: impl Fn(&mut Cmd),
        limit: Duration,
    ) -> Result<Result<Value, RedisError>, LockError> {
        let until = Clock::System.now().plus(limit);
        let reply = connection
            .call(&script.by_hash(keys, &write_args), limit)
            .await?;
        match reply {
            Err(error) if is_unknown_script(&error) => {
                let left = until.since(Clock::System.now());
                connection
                    .call(&script.by_text(keys, &write_args), left)
                    .await
            }
            reply => Ok(reply),
        }
    }

    /// Runs a script that has one key, and reads its answer.
    pub(super) async fn ask<T>(
        &self,
        connection: &Connection,
        script: &Script,
        key: &LockKey,
        args: &[impl ToRedisArgs],
        read: impl Fn(Value) -> Result<Timed<T>, LockError>,
        limit: Duration,
    ) -> Result<Asked<T>, LockError> {
        let sent = Clock::System.now();
        let write_args = |command: &mut Cmd| {
            command.arg(args);
        };
        let reply = self
            .run(connection, script, &[key.as_str()], write_args, limit)
            .await?;
        let reply = reply.map_err(|error| refused(connection, key, error))?;
        let Timed { it, server_us } = read(reply)?;
        self.told_time(connection, sent, server_us);
        Ok(Asked {
            it,
            sent,
            server_ms: server_us / 1000,
        })
    }

    /// Runs a script for each lease, all in one pipeline. `args` and `read` are told the latest
    /// that the server's clock can show now, `read` also when the command was sent.
    pub(super) async fn renew_each(
        &self,
        script: &Script,
        renewals: &[Renewal],
        args: impl Fn(&Renewal, u64) -> Vec<String>,
        read: impl Fn(&Renewal, u64, Moment, Value) -> Result<Timed<Renewed>, LockError>,
        limit: Duration,
    ) -> Vec<Renewed> {
        if renewals.is_empty() {
            return Vec::new();
        }
        let until = Clock::System.now().plus(limit);
        let connection = match self.connections.here(limit).await {
            Ok(connection) => connection,
            Err(error) => return Renewed::all_failed(renewals, &error),
        };
        let now = Clock::System.now();
        let server_ms = self.anchor_for(&connection).server_ms_at(now);
        let all_args: Vec<_> = renewals
            .iter()
            .map(|renewal| args(renewal, server_ms))
            .collect();
        let mut pipeline = Pipeline::with_capacity(renewals.len());
        for (renewal, args) in renewals.iter().zip(&all_args) {
            pipeline.add_command(script.by_hash(&[renewal.key.as_str()], |command| {
                command.arg(&args[..]);
            }));
        }
        pipeline.ignore_errors();
        let sent = Clock::System.now();
        let replies = match connection.call_all(&pipeline, until.since(sent)).await {
            Ok(replies) => replies,
            Err(error) => return Renewed::all_failed(renewals, &error),
        };
        let mut answers = Vec::with_capacity(renewals.len());
        for ((renewal, args), reply) in renewals.iter().zip(&all_args).zip(replies) {
            // One that the server had forgotten is sent again, and counts from then.
            let (sent, reply) = match reply {
                Err(error) if is_unknown_script(&error) => {
                    let sent = Clock::System.now();
                    let command = script.by_text(&[renewal.key.as_str()], |command| {
                        command.arg(&args[..]);
                    });
                    (sent, connection.call(&command, until.since(sent)).await)
                }
                reply => (sent, Ok(reply)),
            };
            let answer = reply
                .and_then(|reply| reply.map_err(|e| refused(&connection, &renewal.key, e)))
                .and_then(|reply| read(renewal, server_ms, sent, reply));
            answers.push(match answer {
                Ok(Timed { it, server_us }) => {
                    self.told_time(&connection, sent, server_us);
                    it
                }
                Err(error) => Renewed::Failed(error),
            });
        }
        answers
    }

    /// The server time after which a command that is sent now must do nothing any more, with the
    /// latest that the server's clock can show now.
    pub(super) fn not_after(&self, connection: &Connection, now: Moment) -> NotAfter {
        let server_ms = self.anchor_for(connection).server_ms_at(now);
        NotAfter {
            server_ms,
            not_after_ms: server_ms.saturating_add(whole_millis(self.command_timeout)),
        }
    }
}

/// The answer of a script.
pub(super) struct Asked<T> {
    pub(super) it: T,
    /// Before it was asked.
    pub(super) sent: Moment,
    pub(super) server_ms: u64,
}

/// How long a command counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotAfter {
    pub(super) server_ms: u64,
    pub(super) not_after_ms: u64,
}

/// A server whose clock jumped forward refuses a command as late; its refusal tells the time,
/// so the next one is right unless the clock jumps again.
pub(super) const LATE_TRIES: usize = 3;

/// Its clock jumped that often.
pub(super) fn always_late() -> LockError {
    LockError::backend(
        BackendErrorKind::Other,
        "the lock server's clock runs away: it refuses each command as late",
    )
}

/// The server's own error: is the connection still good, is it about a key of ours?
pub(super) fn refused(connection: &Connection, key: &LockKey, error: RedisError) -> LockError {
    if is_wrong_type(&error) {
        return foreign::companion(key);
    }
    let error = lock_error("the lock server refuses", error);
    if breaks_connection(&error) {
        connection.break_off();
    }
    error
}
