//! Native locks on one primary.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::client::{RedisClient, server_error};
use super::connection::Connection;
use super::reply::{self, ScriptReply};
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use crate::backend::Renewal;
use crate::config::ManagerConfig;
use crate::error::LockError;
use crate::protocol::acquisition::{
    AcquireOutcome, Failure, RenewOutcome, ReplyTimes, SendContext, SentAcquires,
};
use crate::protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use crate::protocol::clock::{Clock, Deadline, Moment};
use crate::protocol::key::LockKey;
use crate::protocol::poll_schedule;
use crate::protocol::ttl::whole_millis;
use crate::protocol::wire::Mode;

/// How far the seed of a counter is ahead of the server's time: zero on a single primary.
const LEAD: u64 = 0;
/// The kind of the lock: exclusive.
const KIND: &str = "";

/// Native locks on one server.
pub(super) struct NativeLocks {
    client: Arc<RedisClient>,
    grace_ms: u64,
    label: Arc<str>,
}

impl NativeLocks {
    pub(super) fn new(client: Arc<RedisClient>, config: &ManagerConfig) -> Self {
        Self {
            client,
            grace_ms: whole_millis(config.grace()),
            label: Arc::clone(&config.label),
        }
    }

    pub(super) async fn acquire(
        &self,
        sent: &mut SentAcquires,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        let mode = self.mode(sent, &connection, deadline.left()).await;
        let ttl = sent.lease_config.ttl;
        let now = Clock::System.now();
        let not_after = self.client.not_after(&connection, now);
        let copy = sent.on_send(SendContext {
            origin: connection.origin,
            mode,
            channel: &self.client.subscription.channel,
            lease: poll_schedule::handover_lease(mode, ttl),
            now,
            not_after,
            command_timeout: self.client.command_timeout,
        });
        let sent_at = Clock::System.now();
        let reply = {
            let keys = sent.key.all();
            let entry = sent.entry().map(ToString::to_string).unwrap_or_default();
            let owner_id = sent.owner_id.to_string();
            let write_args = |cmd: &mut Cmd| {
                cmd.arg(&owner_id)
                    .arg(ttl.as_millis())
                    .arg(connection.floor_us())
                    .arg(not_after.not_after_ms.as_u64())
                    .arg(&*sent.label)
                    .arg(&entry)
                    .arg(LEAD)
                    .arg(KIND);
                for earlier in sent.earlier() {
                    cmd.arg(earlier.to_string());
                }
            };
            let left = deadline.left();
            self.client
                .run(&connection, &ACQUIRE, &keys, write_args, left)
                .await?
        };
        let reply = reply.map_err(|error| {
            let error = server_error(&connection, &sent.key, &error);
            sent.on_error_reply(&copy, error.class());
            error
        })?;
        let ScriptReply { value, server_us } = reply::acquire(&reply)?;
        self.client
            .record_server_time(&connection, sent_at, server_us);
        let times = ReplyTimes {
            sent: sent_at,
            received: Clock::System.now(),
            server_us,
        };
        Ok(sent.on_reply(&copy, value, times))
    }

    /// Returns whether the waiter will receive notifications or poll.
    async fn mode(&self, sent: &SentAcquires, connection: &Connection, limit: Duration) -> Mode {
        if sent.waits_until.is_none() {
            return Mode::Polling;
        }
        let run_id = connection.first.run_id;
        if self.client.subscription.is_up_for(run_id, limit / 2).await {
            Mode::Subscribed
        } else {
            Mode::Polling
        }
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(release_request, limit).await?;
        let sent = Clock::System.now();
        let write_args =
            |command: &mut Cmd| self.write_release(command, release_request, &connection, sent);
        let (keys, left) = (release_request.key.all(), deadline.left());
        let reply = self
            .client
            .run(&connection, &RELEASE, &keys, write_args, left)
            .await?;
        let reply =
            reply.map_err(|error| server_error(&connection, &release_request.key, &error))?;
        let (outcome, server_us) = released(reply)?;
        if let Some(server_us) = server_us {
            self.client.record_server_time(&connection, sent, server_us);
        }
        Ok(outcome)
    }

    /// Sends many releases in one pipeline.
    pub(super) async fn release_all(
        &self,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let keys = |key| LockKey::all(key).to_vec();
        let write_args = |command: &mut Cmd, request: &_, connection: &_, now| {
            self.write_release(command, request, connection, now);
        };
        self.client
            .release_each(&RELEASE, requests, keys, write_args, released, limit)
            .await
    }

    fn write_release(
        &self,
        command: &mut Cmd,
        release_request: &ReleaseRequest,
        connection: &Connection,
        now: Moment,
    ) {
        command
            .arg(release_request.owner_id.to_string())
            .arg(connection.floor_us())
            .arg(self.grace_ms)
            .arg(LEAD);
        if release_request.is_plain(now) {
            return;
        }
        command
            .arg(release_request.min_hold_ms(now))
            .arg(&*self.label)
            .arg(KIND);
        for entry in &release_request.entries {
            command.arg(entry.to_string());
        }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let args = |renewal: &Renewal, _| {
            let ttl = whole_millis(renewal.ttl);
            vec![renewal.owner_id.to_string(), ttl.to_string()]
        };
        let read = |_: &Renewal, _, sent, reply| {
            let ScriptReply { value, server_us } = reply::renew(&reply)?;
            let value = RenewOutcome::from_reply(value, sent);
            Ok(ScriptReply { value, server_us })
        };
        self.client
            .renew_each(&RENEW, renewals, args, read, limit)
            .await
    }
}

fn released(reply: Value) -> Result<(ReleaseOutcome, Option<u64>), LockError> {
    let (reply, server_us) = reply::release(&reply)?;
    Ok((ReleaseOutcome::from_reply(reply, server_us), server_us))
}
