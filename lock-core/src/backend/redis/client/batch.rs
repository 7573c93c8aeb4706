//! Many runs of a script in one pipeline.

use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};

use super::{RedisClient, server_error};
use crate::backend::Renewal;
use crate::backend::redis::connection::Connection;
use crate::backend::redis::errors::is_unknown_script;
use crate::backend::redis::reply::ScriptReply;
use crate::backend::redis::scripts::{Script, ScriptCommands};
use crate::error::LockError;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::key::LockKey;
use lock_protocol::loss::LossReason;
use lock_protocol::resp::LOCK_REPLY;

impl RedisClient {
    /// Runs a script for each lease, all in one pipeline. `args` and `read` get the latest time
    /// that the server's clock can show now; `read` also gets the time of sending.
    pub(in crate::backend::redis) async fn renew_each(
        &self,
        script: &Script,
        renewals: &[Renewal],
        args: impl Fn(&Renewal, ServerMs) -> Vec<String>,
        read: impl Fn(&Renewal, ServerMs, Moment, Value) -> Result<ScriptReply<RenewOutcome>, LockError>,
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        if renewals.is_empty() {
            return Vec::new();
        }
        let deadline = Deadline::after(Clock::System, limit);
        let connection = match self.pool.for_current_runtime(limit).await {
            Ok(connection) => connection,
            Err(error) => return renewals.iter().map(|_| Err(error.clone())).collect(),
        };
        let left = deadline.left();
        let (results, _none) = self
            .renew_on(&connection, script, renewals, args, read, None, left)
            .await;
        results
    }

    /// As [`renew_each`](Self::renew_each), over this connection. `last` follows the scripts in the
    /// pipeline; its reply comes back too.
    #[expect(
        clippy::too_many_arguments,
        reason = "each one is a part of the pipeline"
    )]
    pub(in crate::backend::redis) async fn renew_on(
        &self,
        connection: &Connection,
        script: &Script,
        renewals: &[Renewal],
        args: impl Fn(&Renewal, ServerMs) -> Vec<String>,
        read: impl Fn(&Renewal, ServerMs, Moment, Value) -> Result<ScriptReply<RenewOutcome>, LockError>,
        last: Option<&Cmd>,
        limit: Duration,
    ) -> (Vec<Result<RenewOutcome, LockError>>, Option<LastReply>) {
        let now = Clock::System.now();
        let changed_at = self.server_changed_at(connection);
        let server_ms = self.not_after(connection, now).server_ms;
        let all_args: Vec<_> = renewals
            .iter()
            .map(|renewal| args(renewal, server_ms))
            .collect();
        let calls: Vec<_> = renewals
            .iter()
            .map(|renewal| Call {
                key: &renewal.key,
                keys: renewal.keys(),
            })
            .collect();
        let write_args = |at: usize, command: &mut Cmd| {
            command.arg(&all_args[at][..]);
        };
        let read = |at: usize, sent, reply| {
            let reply = read(&renewals[at], server_ms, sent, reply)?;
            let is_older =
                changed_at.is_some_and(|at_change| renewals[at].confirmed_at < at_change);
            let outcome = if is_older {
                reply.value.map_loss(LossReason::after_server_change)
            } else {
                reply.value
            };
            Ok((outcome, Some(reply.server_us)))
        };
        self.run_each_then(
            connection, script, &calls, write_args, read, last, LOCK_REPLY, limit,
        )
        .await
    }

    /// Runs a script for each call, all in one pipeline, with replies of at most `largest` bytes each. Returns one
    /// result for each, in order.
    /// `write_args` and `read` get the index of the call; `read` also gets the time of sending.
    #[expect(
        clippy::too_many_arguments,
        reason = "each one is a part of the pipeline"
    )]
    pub(in crate::backend::redis) async fn run_each<T>(
        &self,
        connection: &Connection,
        script: &Script,
        calls: &[Call<'_>],
        write_args: impl Fn(usize, &mut Cmd),
        read: impl Fn(usize, Moment, Value) -> Result<(T, Option<u64>), LockError>,
        largest: usize,
        limit: Duration,
    ) -> Vec<Result<T, LockError>> {
        let (results, _none) = self
            .run_each_then(
                connection, script, calls, write_args, read, None, largest, limit,
            )
            .await;
        results
    }

    /// As [`run_each`](Self::run_each). `last` follows the scripts in the pipeline; its reply comes back
    /// too, unless the pipeline failed.
    #[expect(
        clippy::too_many_arguments,
        reason = "each one is a part of the pipeline"
    )]
    async fn run_each_then<T>(
        &self,
        connection: &Connection,
        script: &Script,
        calls: &[Call<'_>],
        write_args: impl Fn(usize, &mut Cmd),
        read: impl Fn(usize, Moment, Value) -> Result<(T, Option<u64>), LockError>,
        last: Option<&Cmd>,
        largest: usize,
        limit: Duration,
    ) -> (Vec<Result<T, LockError>>, Option<LastReply>) {
        let deadline = Deadline::after(Clock::System, limit);
        let sent = Clock::System.now();
        let form = connection.abilities.script_form();
        let by_hash = pipeline(0..calls.len(), last, |at| {
            script.by_hash(form, &calls[at].keys, |command| write_args(at, command))
        });
        let mut replies = match connection
            .call_all_large(&by_hash, largest, deadline.left())
            .await
        {
            Ok(replies) => replies,
            Err(error) => return (calls.iter().map(|_| Err(error.clone())).collect(), None),
        };
        let mut last_reply = last.and_then(|_| replies.pop());
        // Calls of scripts that the server does not know are sent again, with a new time of
        // sending.
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
            let by_text = pipeline(unknown.iter().copied(), last, |at| {
                script.by_text(form, &calls[at].keys, |command| write_args(at, command))
            });
            match connection
                .call_all_large(&by_text, largest, deadline.left())
                .await
            {
                Ok(mut again) => {
                    last_reply = last.and_then(|_| again.pop());
                    for (at, reply) in unknown.iter().zip(again) {
                        replies[*at] = reply;
                        sent_at[*at] = sent;
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        let mut results = Vec::with_capacity(calls.len());
        for (at, reply) in replies.into_iter().enumerate() {
            let reply = match reply {
                Err(error) if is_unknown_script(&error) && failed.is_some() => {
                    results.extend(failed.clone().map(Err));
                    continue;
                }
                reply => reply.map_err(|error| server_error(connection, calls[at].key, &error)),
            };
            let sent = sent_at[at];
            results.push(reply.and_then(|reply| read(at, sent, reply)).map(|reply| {
                let (value, server_us) = reply;
                if let Some(server_us) = server_us {
                    self.record_server_time(connection, sent, server_us);
                }
                value
            }));
        }
        (results, last_reply)
    }

    /// Runs a release script for each request, all in one pipeline. Returns one outcome for each, in
    /// order. `write_args` gets the connection and the time of sending. `read` returns the outcome, and
    /// the server's time if the reply has it.
    pub(in crate::backend::redis) async fn release_each<'a>(
        &self,
        script: &Script,
        requests: &'a [&'a ReleaseRequest],
        keys: impl Fn(&&'a ReleaseRequest) -> Vec<&'a str>,
        write_args: impl Fn(&mut Cmd, &ReleaseRequest, &Connection, Moment),
        read: impl Fn(Value) -> Result<(ReleaseOutcome, Option<u64>), LockError>,
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let deadline = Deadline::after(Clock::System, limit);
        let connection = match self.pool.for_current_runtime(limit).await {
            Ok(connection) => connection,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        let now = Clock::System.now();
        let call = |request: &&'a ReleaseRequest| Call {
            key: &request.key,
            keys: keys(request),
        };
        let calls: Vec<_> = requests.iter().map(call).collect();
        let write_args = |at: usize, command: &mut Cmd| {
            write_args(command, requests[at], &connection, now);
        };
        let run_id = connection.first.run_id;
        let read = |_, _, reply| {
            let (outcome, server_us) = read(reply)?;
            Ok((outcome.told_by(run_id), server_us))
        };
        let left = deadline.left();
        self.run_each(
            &connection,
            script,
            &calls,
            write_args,
            read,
            LOCK_REPLY,
            left,
        )
        .await
    }
}

/// One of many runs of a script.
pub(in crate::backend::redis) struct Call<'a> {
    /// The key that an error names.
    pub(in crate::backend::redis) key: &'a LockKey,
    pub(in crate::backend::redis) keys: Vec<&'a str>,
}

/// The reply to the command behind a batch.
pub(in crate::backend::redis) type LastReply = Result<Value, RedisError>;

fn pipeline(
    of: impl Iterator<Item = usize>,
    last: Option<&Cmd>,
    command: impl Fn(usize) -> Cmd,
) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(of.size_hint().0 + 1);
    for at in of {
        pipeline.add_command(command(at));
    }
    if let Some(last) = last {
        pipeline.add_command(last.clone());
    }
    pipeline.ignore_errors();
    pipeline
}
