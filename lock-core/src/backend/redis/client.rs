//! What the parts of a server's backend share: connections, pushes, and the server's time.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, ToRedisArgs, Value};
use tokio::sync::{Notify, watch};

use super::connection::{Connection, Connector};
use super::errors::{breaks_connection, is_unknown_script, is_wrong_type, lock_error};
use super::pool::Pool;
use super::reply::ScriptReply;
use super::scripts::Script;
use crate::backend::{NotificationSink, ReleaseOutcome, ReleaseRequest, RenewOutcome, Renewal};
use crate::error::foreign_key;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::{Clock, Deadline, Moment, ServerMs};
use crate::protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use crate::protocol::key::LockKey;
use crate::stats::Counters;

use crate::config::ManagerConfig;
use crate::protocol::ttl::whole_millis;
use crate::protocol::wire;
use crate::sync::Mutex;

/// What is known of the push connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionState {
    /// Nobody has waited yet.
    Idle,
    /// Subscribed, at that life of the server.
    Up(u64),
    Down,
}

/// The state of the push connection, for those who wait.
pub(super) struct Subscription {
    pub(super) channel: String,
    state: watch::Sender<SubscriptionState>,
    wanted: Notify,
}

impl Subscription {
    /// The prefix stands in the channel, so that an access list can keep apart who shares a server.
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = wire::in_channel(prefix);
        Self {
            channel: format!("lk1:{prefix}:{}", uuid::Uuid::new_v4()),
            state: watch::Sender::new(SubscriptionState::Idle),
            wanted: Notify::new(),
        }
    }

    /// Sets the state, and tells the last one.
    pub(super) fn set(&self, state: SubscriptionState) -> SubscriptionState {
        self.state.send_replace(state)
    }

    /// Returns whether no waiter has needed it yet.
    pub(super) fn is_idle(&self) -> bool {
        self.state() == SubscriptionState::Idle
    }

    pub(super) fn state(&self) -> SubscriptionState {
        *self.state.borrow()
    }

    /// Until the first waiter asks for pushes.
    pub(super) async fn wanted_by_waiter(&self) {
        self.wanted.notified().await;
    }

    /// Whether pushes of that life of the server arrive; waits for the first subscription.
    pub(super) async fn is_up_for(&self, run_id: u64, limit: Duration) -> bool {
        if run_id == UNKNOWN_RUN_ID {
            return false;
        }
        let mut state = self.state.subscribe();
        if *state.borrow() == SubscriptionState::Idle {
            self.wanted.notify_one();
            let first = state.wait_for(|state| *state != SubscriptionState::Idle);
            let _known_or_given_up = tokio::time::timeout(limit, first).await;
        }
        *self.state.borrow() == SubscriptionState::Up(run_id)
    }
}

/// One server, as all runtimes of a manager see it.
pub(super) struct RedisClient {
    pub(super) pool: Pool,
    pub(super) subscription: Subscription,
    pub(super) notifications: Arc<dyn NotificationSink>,
    pub(super) counters: Arc<Counters>,
    pub(super) command_timeout: Duration,
    clock_sync: Mutex<Option<ClockSync>>,
}

impl RedisClient {
    pub(super) fn new(
        connector: Connector,
        config: &ManagerConfig,
        notifications: Arc<dyn NotificationSink>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            pool: Pool::new(connector),
            subscription: Subscription::new(&config.prefix),
            notifications,
            counters,
            command_timeout: config.command_timeout,
            clock_sync: Mutex::default(),
        }
    }

    pub(super) fn clock_sync(&self) -> Option<ClockSync> {
        *self.clock_sync.lock()
    }

    /// A reply told the server's time.
    pub(super) fn record_server_time(&self, connection: &Connection, sent: Moment, server_us: u64) {
        let mut clock_sync = self.clock_sync.lock();
        let run_id = connection.first.run_id;
        let older = clock_sync.is_none_or(|known| known.run_id != run_id || known.sent < sent);
        if older {
            *clock_sync = Some(ClockSync {
                sent,
                server_us,
                run_id,
            });
        }
    }

    /// The youngest time of that life of the server.
    pub(super) fn clock_sync_for(&self, connection: &Connection) -> ClockSync {
        self.clock_sync()
            .filter(|clock_sync| clock_sync.run_id == connection.first.run_id)
            .unwrap_or(connection.first)
    }

    /// The connection for a release: that of the command which it takes back, so that it cannot
    /// overtake it, or the caller's.
    pub(super) async fn connection_for(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<Arc<Connection>, LockError> {
        let same = release_request
            .origin
            .and_then(|origin| self.pool.by_origin(origin));
        match same {
            Some(connection) => Ok(connection),
            None => self.pool.for_current_runtime(limit).await,
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
        let time_limit = Deadline::after(Clock::System, limit);
        let reply = connection
            .call(&script.by_hash(keys, &write_args), limit)
            .await?;
        match reply {
            Err(error) if is_unknown_script(&error) => {
                let left = time_limit.left();
                connection
                    .call(&script.by_text(keys, &write_args), left)
                    .await
            }
            reply => Ok(reply),
        }
    }

    /// Runs a script that has one key, and reads its answer.
    pub(super) async fn call_script<T>(
        &self,
        connection: &Connection,
        script: &Script,
        key: &LockKey,
        args: &[impl ToRedisArgs],
        read: impl Fn(Value) -> Result<ScriptReply<T>, LockError>,
        limit: Duration,
    ) -> Result<(Moment, ScriptReply<T>), LockError> {
        let sent = Clock::System.now();
        let write_args = |command: &mut Cmd| {
            command.arg(args);
        };
        let reply = self
            .run(connection, script, &[key.as_str()], write_args, limit)
            .await?;
        let reply = reply.map_err(|error| server_error(connection, key, &error))?;
        let reply = read(reply)?;
        self.record_server_time(connection, sent, reply.server_us);
        Ok((sent, reply))
    }

    /// Runs a script for each lease, all in one pipeline. `args` and `read` are told the latest
    /// that the server's clock can show now, `read` also when the command was sent.
    pub(super) async fn renew_each(
        &self,
        script: &Script,
        renewals: &[Renewal],
        args: impl Fn(&Renewal, ServerMs) -> Vec<String>,
        read: impl Fn(&Renewal, ServerMs, Moment, Value) -> Result<ScriptReply<RenewOutcome>, LockError>,
        limit: Duration,
    ) -> Vec<RenewOutcome> {
        if renewals.is_empty() {
            return Vec::new();
        }
        let time_limit = Deadline::after(Clock::System, limit);
        let connection = match self.pool.for_current_runtime(limit).await {
            Ok(connection) => connection,
            Err(error) => return RenewOutcome::all_failed(renewals, &error),
        };
        let now = Clock::System.now();
        let server_ms = self.clock_sync_for(&connection).server_ms_at(now);
        let all_args: Vec<_> = renewals
            .iter()
            .map(|renewal| args(renewal, server_ms))
            .collect();
        let calls: Vec<_> = renewals
            .iter()
            .map(|renewal| Call {
                key: &renewal.key,
                keys: vec![renewal.key.as_str()],
            })
            .collect();
        let write_args = |at: usize, command: &mut Cmd| {
            command.arg(&all_args[at][..]);
        };
        let read = |at: usize, sent, reply| read(&renewals[at], server_ms, sent, reply);
        let answers = self
            .run_each(
                &connection,
                script,
                &calls,
                write_args,
                read,
                time_limit.left(),
            )
            .await;
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(RenewOutcome::Failed))
            .collect()
    }

    /// Runs a script for each call, all in one pipeline. One answer for each, in order.
    /// `write_args` and `read` are told which one it is, `read` also when it was sent.
    pub(super) async fn run_each<T>(
        &self,
        connection: &Connection,
        script: &Script,
        calls: &[Call<'_>],
        write_args: impl Fn(usize, &mut Cmd),
        read: impl Fn(usize, Moment, Value) -> Result<ScriptReply<T>, LockError>,
        limit: Duration,
    ) -> Vec<Result<T, LockError>> {
        let time_limit = Deadline::after(Clock::System, limit);
        let sent = Clock::System.now();
        let by_hash = pipeline(0..calls.len(), |at| {
            script.by_hash(&calls[at].keys, |command| write_args(at, command))
        });
        let mut replies = match connection.call_all(&by_hash, time_limit.left()).await {
            Ok(replies) => replies,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        // Those that the server had forgotten are sent again, and count from then.
        let unknown: Vec<usize> = replies
            .iter()
            .enumerate()
            .filter(|(_, reply)| reply.as_ref().is_err_and(is_unknown_script))
            .map(|(at, _)| at)
            .collect();
        let mut sent_at = vec![sent; calls.len()];
        let mut failed = None;
        if !unknown.is_empty() {
            let sent = Clock::System.now();
            let by_text = pipeline(unknown.iter().copied(), |at| {
                script.by_text(&calls[at].keys, |command| write_args(at, command))
            });
            match connection.call_all(&by_text, time_limit.left()).await {
                Ok(again) => {
                    for (at, reply) in unknown.iter().zip(again) {
                        replies[*at] = reply;
                        sent_at[*at] = sent;
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        let mut answers = Vec::with_capacity(calls.len());
        for (at, reply) in replies.into_iter().enumerate() {
            let reply = match reply {
                Err(error) if is_unknown_script(&error) && failed.is_some() => {
                    answers.extend(failed.clone().map(Err));
                    continue;
                }
                reply => reply.map_err(|error| server_error(connection, calls[at].key, &error)),
            };
            let sent = sent_at[at];
            answers.push(reply.and_then(|reply| read(at, sent, reply)).map(|answer| {
                self.record_server_time(connection, sent, answer.server_us);
                answer.value
            }));
        }
        answers
    }

    /// Runs a release script for each request, all in one pipeline. Returns one outcome for each, in
    /// order. `write_args` gets the connection and the time of sending.
    pub(super) async fn release_each<'a>(
        &self,
        script: &Script,
        requests: &'a [ReleaseRequest],
        keys: impl Fn(&'a LockKey) -> Vec<&'a str>,
        write_args: impl Fn(&mut Cmd, &ReleaseRequest, &Connection, Moment),
        read: impl Fn(Value) -> Result<ScriptReply<ReleaseOutcome>, LockError>,
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let time_limit = Deadline::after(Clock::System, limit);
        let connection = match self.pool.for_current_runtime(limit).await {
            Ok(connection) => connection,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        let now = Clock::System.now();
        let call = |request: &'a ReleaseRequest| Call {
            key: &request.key,
            keys: keys(&request.key),
        };
        let calls: Vec<_> = requests.iter().map(call).collect();
        let write_args = |at: usize, command: &mut Cmd| {
            write_args(command, &requests[at], &connection, now);
        };
        let read = |_, _, reply| read(reply);
        self.run_each(
            &connection,
            script,
            &calls,
            write_args,
            read,
            time_limit.left(),
        )
        .await
    }

    /// The server time after which a command that is sent now must do nothing any more, with the
    /// latest that the server's clock can show now.
    pub(super) fn not_after(&self, connection: &Connection, now: Moment) -> NotAfter {
        let server_ms = self.clock_sync_for(connection).server_ms_at(now);
        NotAfter {
            server_ms,
            not_after_ms: server_ms.plus(whole_millis(self.command_timeout)),
        }
    }
}

/// One of many runs of a script.
pub(super) struct Call<'a> {
    /// What an error is about.
    pub(super) key: &'a LockKey,
    pub(super) keys: Vec<&'a str>,
}

fn pipeline(of: impl Iterator<Item = usize>, command: impl Fn(usize) -> Cmd) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(of.size_hint().0);
    for at in of {
        pipeline.add_command(command(at));
    }
    pipeline.ignore_errors();
    pipeline
}

/// How long a command counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotAfter {
    pub(super) server_ms: ServerMs,
    pub(super) not_after_ms: ServerMs,
}

/// A server whose clock jumped forward refuses a command as late; its refusal tells the time,
/// so the next one is right unless the clock jumps again.
pub(super) const LATE_TRIES: usize = 3;

/// Its clock jumped that often.
pub(super) fn clock_runs_away() -> LockError {
    LockError::backend(
        BackendErrorKind::Other,
        "the lock server's clock runs away: it refuses each command as late",
    )
}

/// The server's own error: is the connection still good, is it about a key of ours?
pub(super) fn server_error(
    connection: &Connection,
    key: &LockKey,
    error: &RedisError,
) -> LockError {
    if is_wrong_type(error) {
        return foreign_key::companion(key);
    }
    let error = lock_error("the lock server refuses", error);
    if breaks_connection(&error) {
        connection.mark_broken(&error);
    }
    error
}
