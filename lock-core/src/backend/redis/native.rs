//! Native locks on one primary.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::client::{LATE_TRIES, NotAfter, RedisClient, clock_keeps_jumping, server_error};
use super::connection::Connection;
use super::reply::{self, ScriptReply};
use super::scripts::{ACQUIRE, RELEASE, RENEW};
use crate::backend::{
    AcquireOutcome, Acquisition, EntryParams, ObservedHolder, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, Renewal,
};
use crate::config::ManagerConfig;
use crate::error::LockError;
use crate::error::foreign_key;
use crate::protocol::clock::{Clock, Deadline, Moment, ServerMs};
use crate::protocol::key::LockKey;
use crate::protocol::lock_state::{self, AcquireReply, RawHolder, Verdict};
use crate::protocol::poll_schedule::{self, HolderExpiry};
use crate::protocol::ttl::whole_millis;
use crate::protocol::wire::{Mode, NATIVE};

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
        acquisition: &mut Acquisition,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.pool.for_current_runtime(limit).await?;
        let mode = self.mode(acquisition, &connection, deadline.left()).await;
        for _ in 0..LATE_TRIES {
            if let Some(outcome) = self
                .acquire_once(acquisition, &connection, mode, deadline.left())
                .await?
            {
                return Ok(outcome);
            }
        }
        Err(clock_keeps_jumping())
    }

    /// Returns whether the waiter will receive notifications or poll.
    async fn mode(
        &self,
        acquisition: &Acquisition,
        connection: &Connection,
        limit: Duration,
    ) -> Mode {
        if acquisition.waits_until.is_none() {
            return Mode::Polling;
        }
        let run_id = connection.first.run_id;
        if self.client.subscription.is_up_for(run_id, limit / 2).await {
            Mode::Subscribed
        } else {
            Mode::Polling
        }
    }

    /// Sends one acquire. Returns `None` if it arrived late.
    async fn acquire_once(
        &self,
        acquisition: &mut Acquisition,
        connection: &Connection,
        mode: Mode,
        limit: Duration,
    ) -> Result<Option<AcquireOutcome>, LockError> {
        let ttl = acquisition.lease_config.ttl;
        let now = Clock::System.now();
        let NotAfter {
            server_ms,
            not_after_ms: not_after,
        } = self.client.not_after(connection, now);
        acquisition.update_entry(EntryParams {
            mode,
            channel: &self.client.subscription.channel,
            lease: poll_schedule::handover_lease(mode, ttl),
            now,
            server_ms,
            command_timeout: self.client.command_timeout,
        });
        let command = acquisition.sending(connection.origin, not_after);
        let sent = Clock::System.now();
        let reply = {
            let keys = acquisition.key.all();
            let entry = acquisition
                .entry()
                .map(ToString::to_string)
                .unwrap_or_default();
            let owner_id = acquisition.owner_id.to_string();
            let write_args = |cmd: &mut Cmd| {
                cmd.arg(&owner_id)
                    .arg(ttl.as_millis())
                    .arg(connection.floor_us())
                    .arg(not_after.as_u64())
                    .arg(&*acquisition.label)
                    .arg(&entry)
                    .arg(LEAD)
                    .arg(KIND);
                for earlier in acquisition.earlier() {
                    cmd.arg(earlier.to_string());
                }
            };
            self.client
                .run(connection, &ACQUIRE, &keys, write_args, limit)
                .await?
        };
        acquisition.answered(&command);
        let reply = reply.map_err(|error| {
            let error = server_error(connection, &acquisition.key, &error);
            if error.is_retryable() {
                acquisition.refused(&command);
            }
            error
        })?;
        let reply = reply::acquire(reply)?;
        self.client
            .record_server_time(connection, sent, reply.server_us);
        let poll = (mode == Mode::Polling).then(|| poll_schedule::poll_interval(ttl));
        acquire_outcome(acquisition, reply, sent, poll)
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
        let ScriptReply { value, server_us } = released(reply)?;
        self.client.record_server_time(&connection, sent, server_us);
        Ok(value)
    }

    /// Sends many releases in one pipeline.
    pub(super) async fn release_all(
        &self,
        requests: &[ReleaseRequest],
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
            .arg(release_request.min_hold_ms(now))
            .arg(LEAD)
            .arg(&*self.label)
            .arg(KIND);
        for entry in &release_request.entries {
            command.arg(entry.to_string());
        }
    }

    pub(super) async fn renew(&self, renewals: &[Renewal], limit: Duration) -> Vec<RenewOutcome> {
        let args = |renewal: &Renewal, _| {
            let ttl = whole_millis(renewal.ttl);
            vec![renewal.owner_id.to_string(), ttl.to_string()]
        };
        let read = |_: &Renewal, _, sent, reply| {
            let ScriptReply { value, server_us } = reply::renew(reply)?;
            let value = renewed(value, sent);
            Ok(ScriptReply { value, server_us })
        };
        self.client
            .renew_each(&RENEW, renewals, args, read, limit)
            .await
    }
}

fn released(reply: Value) -> Result<ScriptReply<ReleaseOutcome>, LockError> {
    let ScriptReply { value, server_us } = reply::release(reply)?;
    let value = ReleaseOutcome {
        was_owner: value.verdict != Verdict::NotOwner,
        server_ms: ServerMs::from_micros(server_us),
        more: value.more,
    };
    Ok(ScriptReply { value, server_us })
}

fn renewed(reply: lock_state::RenewReply, sent: Moment) -> RenewOutcome {
    match reply {
        lock_state::RenewReply::Held {
            token,
            remaining_ms,
        } => RenewOutcome::Held {
            token: Some(token),
            sent,
            remaining: Duration::from_millis(remaining_ms),
        },
        lock_state::RenewReply::NotOwner => RenewOutcome::NotOwner,
    }
}

/// Returns the outcome of a reply, and updates the acquisition. Returns `None` for a late command.
fn acquire_outcome(
    acquisition: &mut Acquisition,
    reply: ScriptReply<AcquireReply>,
    sent: Moment,
    poll: Option<Duration>,
) -> Result<Option<AcquireOutcome>, LockError> {
    let received = Clock::System.now();
    Ok(Some(match reply.value {
        AcquireReply::Late => return Ok(None),
        AcquireReply::Held {
            token,
            remaining_ms,
        } => AcquireOutcome::Held {
            token: Some(token),
            sent,
            remaining: Duration::from_millis(remaining_ms),
        },
        AcquireReply::Queued { rank, holder } => {
            acquisition.queued(ServerMs::from_micros(reply.server_us));
            AcquireOutcome::Queued {
                rank,
                holder_expiry: holder_expiry(&holder, received),
                holder: observed_holder(&holder),
                poll,
            }
        }
        AcquireReply::More => AcquireOutcome::More,
        AcquireReply::Busy { holder } => {
            acquisition.out();
            AcquireOutcome::Busy {
                holder_expiry: holder_expiry(&holder, received),
                holder: observed_holder(&holder),
            }
        }
        AcquireReply::Foreign { found } => {
            return Err(foreign_key::of_type(&acquisition.key, &found));
        }
    }))
}

fn holder_expiry(holder: &RawHolder, received: Moment) -> HolderExpiry {
    let Some(remaining_ms) = holder.remaining_ms else {
        return HolderExpiry::NoExpiry;
    };
    let ends = received.plus(Duration::from_millis(remaining_ms));
    if holder.value.starts_with(NATIVE) {
        HolderExpiry::Native { ends }
    } else {
        HolderExpiry::Foreign { ends }
    }
}

fn observed_holder(holder: &RawHolder) -> Option<ObservedHolder> {
    ObservedHolder::from_value(
        &holder.value,
        holder.remaining_ms.map(Duration::from_millis),
    )
}
