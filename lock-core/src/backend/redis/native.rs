//! Native locks on one primary.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::client::{LastReply, RedisClient, server_error};
use super::connection::Connection;
use super::reply::{self, ScriptReply, text_of};
use super::scripts::{ACQUIRE, DROP, RELEASE, RENEW};
use crate::backend::Renewal;
use crate::config::ManagerSettings;
use crate::error::LockError;
use lock_protocol::acquisition::{
    AcquireOutcome, Failure, RenewOutcome, ReplyTimes, SendContext, SentAcquires,
};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::kind::Kind;
use lock_protocol::lock_state::Purpose;
use lock_protocol::poll_schedule;
use lock_protocol::resp::{Arg, Command};
use lock_protocol::ttl::whole_millis;
use lock_protocol::wire::Mode;

mod set;

/// The kind in an acquire that makes the holder of the exclusive lock a reader.
const DOWNGRADE: &str = ">r";

/// Makes a renewal write the expiry also where it stays.
const ALWAYS_WRITE: &str = "write";

/// Native locks on one server.
pub(super) struct NativeLocks {
    client: Arc<RedisClient>,
    grace_ms: u64,
}

impl NativeLocks {
    pub(super) fn new(client: Arc<RedisClient>, config: &ManagerSettings) -> Self {
        Self {
            client,
            grace_ms: whole_millis(config.grace()),
        }
    }

    pub(super) async fn acquire(
        &self,
        sent: &mut SentAcquires,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        let (mode, channel) = self.mode(sent, &connection, deadline).await;
        let ttl = sent.lease_config.ttl;
        let now = Clock::System.now();
        let not_after = self.client.not_after(&connection, now);
        let copy = sent.on_send(SendContext {
            origin: connection.origin,
            run_id: connection.process(),
            mode,
            channel: &channel,
            lease: poll_schedule::handover_lease(mode, ttl),
            now,
            not_after,
            command_timeout: self.client.command_timeout,
        });
        let reply = {
            let keys = sent.key.all();
            let keys = self.declared(&keys, sent.lease_config.kind);
            let write_args = |command: &mut Command<'_>| {
                command
                    .arg(sent.owner_id)
                    .arg(ttl.as_millis())
                    .arg(connection.floor_us())
                    .arg(not_after.not_after_ms)
                    .arg(&*sent.label);
                let (entry, earlier) = (sent.entry(), sent.earlier());
                let lead = connection.lead_us();
                let kind = sent.lease_config.kind;
                let has_more = lead > 0 || !earlier.is_empty() || kind.is_shared();
                match entry {
                    Some(entry) => {
                        command.arg(entry);
                    }
                    None if has_more => {
                        command.arg("");
                    }
                    None => {}
                }
                if has_more {
                    command.arg(lead);
                    match sent.purpose {
                        Purpose::Acquire => command.arg(kind.wire()),
                        Purpose::Downgrade => command.arg(DOWNGRADE),
                    };
                }
                for entry in earlier {
                    command.arg(entry);
                }
            };
            self.client
                .run(
                    &connection,
                    ACQUIRE.of(self.client.is_sharded()),
                    keys,
                    write_args,
                    deadline,
                    now,
                )
                .await?
        };
        let reply = reply.map_err(|error| {
            let error = server_error(&connection, &sent.key, &error);
            sent.on_error_reply(&copy, error.class());
            error
        })?;
        let ScriptReply { value, server_us } = reply::acquire(reply.text())?;
        self.client.record_server_time(&connection, now, server_us);
        let times = ReplyTimes {
            sent: now,
            received: Clock::System.now(),
            server_us,
            run_id: connection.process(),
        };
        Ok(sent.on_reply(&copy, value, times))
    }

    /// Returns whether the waiter will receive notifications or poll, and its channel.
    async fn mode(
        &self,
        sent: &SentAcquires,
        connection: &Connection,
        deadline: Deadline,
    ) -> (Mode, Arc<str>) {
        let run_id = connection.first.run_id;
        let subscription = &self.client.subscription;
        let whole = &subscription.channel;
        if sent.waits_until.is_none() {
            return (Mode::Polling, Arc::clone(whole));
        }
        let limit = || deadline.left() / 2;
        #[cfg(feature = "cluster")]
        if let Some(shards) = &self.client.shards {
            if !self.client.pool.connector.can_subscribe() {
                return (Mode::Polling, Arc::clone(whole));
            }
            // In a box, so that a lock at a single server has a small future.
            let subscribing = Box::pin(shards.is_up_for(&sent.key, run_id, limit()));
            let (is_up, channel) = subscribing.await;
            return (mode_of(is_up), channel);
        }
        let is_up = subscription.is_up_for(run_id, limit).await;
        (mode_of(is_up), Arc::clone(whole))
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(release_request, limit).await?;
        let sent = Clock::System.now();
        let write_args = |command: &mut Command<'_>| {
            self.release_args(release_request, &connection, sent, |arg| {
                command.arg(arg);
            });
        };
        let keys = release_request.key.all();
        let keys = self.declared(&keys, release_request.kind);
        let reply = self
            .client
            .run(
                &connection,
                RELEASE.of(self.client.is_sharded()),
                keys,
                write_args,
                deadline,
                sent,
            )
            .await?;
        let reply =
            reply.map_err(|error| server_error(&connection, &release_request.key, &error))?;
        let (outcome, server_us) = released(reply.text())?;
        if let Some(server_us) = server_us {
            self.client.record_server_time(&connection, sent, server_us);
        }
        Ok(outcome.told_by(connection.first.run_id))
    }

    /// Frees the key alone, while its slot moves. The full release has to follow.
    pub(super) async fn drop_key(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<bool, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(release_request, limit).await?;
        let now = Clock::System.now();
        let min_hold = release_request.min_hold_ms(now);
        let write_args = |command: &mut Command<'_>| {
            command.arg(release_request.owner_id).arg(min_hold);
        };
        let keys = [release_request.key.as_str()];
        let reply = self
            .client
            .run(&connection, &DROP, &keys, write_args, deadline, now)
            .await?;
        let reply =
            reply.map_err(|error| server_error(&connection, &release_request.key, &error))?;
        Ok(reply
            .text()
            .is_some_and(|text| text.starts_with(b"released")))
    }

    /// Sends many releases in one pipeline.
    pub(super) async fn release_all<'a>(
        &self,
        requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let keys =
            |request: &&'a ReleaseRequest| self.declared(&request.key.all(), request.kind).to_vec();
        let write_args = |command: &mut Cmd, request: &_, connection: &_, now| {
            self.release_args(request, connection, now, |arg| {
                command.arg(arg.to_bytes());
            });
        };
        let read = |reply: Value| released(text_of(&reply));
        self.client
            .release_each(
                RELEASE.of(self.client.is_sharded()),
                requests,
                keys,
                write_args,
                read,
                limit,
            )
            .await
    }

    /// Returns the keys that a command for a lock of this kind declares. A command for an exclusive lock meets
    /// the holders of a shared one only where another caller uses another kind, and a key costs the server 3 %
    /// of a pair. A cluster needs all keys.
    fn declared<'k, 'a>(&self, keys: &'k [&'a str; 5], kind: Kind) -> &'k [&'a str] {
        if kind.is_shared() || self.client.is_sharded() {
            keys
        } else {
            &keys[..4]
        }
    }

    /// Gives the arguments of a release to `write`, in their order.
    fn release_args(
        &self,
        release_request: &ReleaseRequest,
        connection: &Connection,
        now: Moment,
        mut write: impl FnMut(&dyn Arg),
    ) {
        write(&release_request.owner_id);
        write(&connection.floor_us());
        write(&self.grace_ms);
        let lead = connection.lead_us();
        if release_request.is_plain(now) {
            if lead > 0 {
                write(&lead);
            }
            return;
        }
        write(&lead);
        write(&release_request.min_hold_ms(now));
        write(&release_request.label);
        write(&release_request.kind.wire());
        for entry in &release_request.entries {
            write(entry);
        }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let read = |_: &Renewal, _, sent, reply: Value| read_renewal(sent, &reply);
        self.client
            .renew_each(&RENEW, renewals, renew_args, read, limit)
            .await
    }

    /// Renews leases over this connection. Each of them is a write, also right after its acquire. `last` follows them
    /// in the pipeline.
    pub(super) async fn renew_on(
        client: &RedisClient,
        connection: &Connection,
        renewals: &[Renewal],
        last: Option<&Cmd>,
        limit: Duration,
    ) -> (Vec<Result<RenewOutcome, LockError>>, Option<LastReply>) {
        let read = |_: &Renewal, _, sent, reply: Value| read_renewal(sent, &reply);
        let args = |renewal: &Renewal, server_ms| {
            let mut args = renew_args(renewal, server_ms);
            match args.get_mut(2) {
                Some(write) => ALWAYS_WRITE.clone_into(write),
                None => args.push(ALWAYS_WRITE.to_owned()),
            }
            args
        };
        client
            .renew_on(connection, &RENEW, renewals, args, read, last, limit)
            .await
    }
}

fn mode_of(gets_notifications: bool) -> Mode {
    if gets_notifications {
        Mode::Subscribed
    } else {
        Mode::Polling
    }
}

fn renew_args(renewal: &Renewal, _server_ms: ServerMs) -> Vec<String> {
    let ttl = whole_millis(renewal.ttl);
    let mut args = vec![renewal.owner_id.to_string(), ttl.to_string()];
    let kind = renewal.lease_config.kind;
    if kind.is_shared() {
        args.extend([
            String::new(),
            renewal.label.to_string(),
            kind.wire().to_string(),
        ]);
    }
    args
}

fn read_renewal(sent: Moment, reply: &Value) -> Result<ScriptReply<RenewOutcome>, LockError> {
    let ScriptReply { value, server_us } = reply::renew(text_of(reply))?;
    let (reply, found) = value;
    let value = RenewOutcome::from_reply(reply, found.as_deref(), sent);
    Ok(ScriptReply { value, server_us })
}

fn released(reply: Option<&[u8]>) -> Result<(ReleaseOutcome, Option<u64>), LockError> {
    let (reply, server_us) = reply::release(reply)?;
    Ok((ReleaseOutcome::from_reply(reply, server_us), server_us))
}
