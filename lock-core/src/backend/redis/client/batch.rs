//! Many runs of a script in one pipeline.

use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use super::{RedisClient, server_error};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::errors::is_unknown_script;
use crate::backend::redis::scripts::{Script, ScriptCommands};
use crate::error::LockError;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::key::LockKey;

impl RedisClient {
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
        let deadline = Deadline::after(Clock::System, limit);
        let sent = Clock::System.now();
        let form = connection.abilities.script_form();
        let by_hash = pipeline(0..calls.len(), |at| {
            script.by_hash(form, &calls[at].keys, |command| write_args(at, command))
        });
        let mut replies = match connection
            .call_all(&by_hash, largest, deadline.left())
            .await
        {
            Ok(replies) => replies,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
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
            let by_text = pipeline(unknown.iter().copied(), |at| {
                script.by_text(form, &calls[at].keys, |command| write_args(at, command))
            });
            match connection
                .call_all(&by_text, largest, deadline.left())
                .await
            {
                Ok(again) => {
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
        results
    }
}

/// One of many runs of a script.
pub(in crate::backend::redis) struct Call<'a> {
    /// The key that an error names.
    pub(in crate::backend::redis) key: &'a LockKey,
    pub(in crate::backend::redis) keys: Vec<&'a str>,
}

fn pipeline(of: impl Iterator<Item = usize>, command: impl Fn(usize) -> Cmd) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(of.size_hint().0);
    for at in of {
        pipeline.add_command(command(at));
    }
    pipeline.ignore_errors();
    pipeline
}
