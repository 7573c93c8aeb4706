//! The locks of Redisson: `RLock` and `RFencedLock`.
//!
//! The key is a hash with one field, the holder. A release publishes a message for all waiters of the key, and none
//! of them has the lock yet. The scripts are this library's own: they act on the server as those of `RedissonLock`
//! and `RedissonFencedLock` do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Cmd;

use super::acquire::acquire_by_script;
use super::found::FoundValue;
use super::owner_texts::OwnerTexts;
use crate::backend::Renewal;
use crate::backend::redis::client::{Call, RedisClient};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::reply::{self, ReleaseMessage};
use crate::backend::redis::scripts::{REDISSON_ACQUIRE, REDISSON_RELEASE, REDISSON_RENEW};
use crate::error::{LockError, foreign_key};
use crate::telemetry::LockEvent;
use lock_protocol::acquisition::{AcquireOutcome, ObservedHolder, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::NotAfter;
use lock_protocol::dialect::RedissonLock;
use lock_protocol::key::LockKey;
use lock_protocol::poll_schedule::HolderExpiry;
use lock_protocol::resp::LOCK_REPLY;

pub(super) struct RedissonLocks {
    client: Arc<RedisClient>,
    /// The holders are fields of the hash. Redisson writes `<UUID>:<thread id>`, which never equals one of them.
    texts: OwnerTexts,
    /// It was reported that the server refuses messages.
    warned: AtomicBool,
}

impl RedissonLocks {
    pub(super) fn new(client: Arc<RedisClient>, label: Arc<str>) -> Self {
        Self {
            client,
            texts: OwnerTexts::new(label),
            warned: AtomicBool::new(false),
        }
    }

    /// Makes one attempt. For a waiter, it subscribes to the channel of the key, and makes another attempt after the
    /// first confirmation: the release may have come in between.
    pub(super) async fn acquire(
        &self,
        lock: RedissonLock,
        sent: &mut SentAcquires,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let channels = &self.client.key_channels;
        if !sent.was_sent() {
            channels.wait_after_release(&sent.key).await;
        }
        let run_id = connection.first.run_id;
        let was_up = channels.keep_if_up(&sent.key, run_id);
        let outcome = self
            .attempt(lock, sent, connection, deadline.left())
            .await?;
        let AcquireOutcome::Busy {
            holder_expiry: HolderExpiry::Polled { .. },
            ..
        } = &outcome
        else {
            return Ok(outcome);
        };
        if sent.waits_until.is_none() || !self.client.pool.connector.can_subscribe() {
            return Ok(outcome);
        }
        let half = deadline.left() / 2;
        if !channels.is_up_for(&sent.key, run_id, half).await {
            return Ok(outcome);
        }
        if was_up {
            return Ok(notified(outcome));
        }
        let again = self.attempt(lock, sent, connection, deadline.left());
        again.await.map(notified)
    }

    async fn attempt(
        &self,
        lock: RedissonLock,
        sent: &mut SentAcquires,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let owner = self.texts.of(sent.owner_id);
        let ttl = sent.lease_config.ttl.as_millis();
        let args = |timing: NotAfter| {
            let not_after = timing.not_after_ms.to_string();
            vec![owner.clone(), ttl.to_string(), not_after]
        };
        let key = sent.key.clone();
        let counter = (lock == RedissonLock::Fenced).then(|| key.redisson_counter());
        let mut keys = vec![key.as_str()];
        keys.extend(counter.as_deref());
        let (client, script) = (&self.client, &REDISSON_ACQUIRE);
        let outcome =
            acquire_by_script(client, sent, connection, script, &keys, args, limit).await?;
        let Some(outcome) = outcome else {
            return Ok(AcquireOutcome::Late);
        };
        let found = match outcome.result {
            Ok(remaining) => {
                return Ok(AcquireOutcome::Held {
                    token: outcome.token,
                    sent: outcome.sent,
                    remaining,
                });
            }
            Err(found) => found,
        };
        sent.on_busy();
        match found {
            FoundValue::Value { text, remaining } => {
                let now = Clock::System.now();
                let polled = |remaining| HolderExpiry::Polled {
                    ends: now.plus(remaining),
                };
                Ok(AcquireOutcome::Busy {
                    holder_expiry: remaining.map_or(HolderExpiry::NoExpiry, polled),
                    holder: ObservedHolder::from_value(&text, remaining, None),
                })
            }
            FoundValue::Type(found) => Err(foreign_key::no_redisson_lock(&sent.key, &found)),
            // The script never replies with it.
            FoundValue::Nothing => Err(reply::unexpected()),
        }
    }

    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let (client, script) = (&self.client, &REDISSON_RENEW);
        self.texts.renew(client, script, renewals, limit).await
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(release_request, limit).await?;
        let requests = [release_request];
        let left = deadline.left();
        let released = self.release_over(&connection, &requests, left).await;
        released
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(reply::unexpected()))
    }

    /// Sends many releases in one pipeline.
    pub(super) async fn release_all(
        &self,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let deadline = Deadline::after(Clock::System, limit);
        match self.client.pool.for_current_runtime(limit).await {
            Ok(connection) => {
                self.release_over(&connection, requests, deadline.left())
                    .await
            }
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release_over(
        &self,
        connection: &Connection,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let now = Clock::System.now();
        let calls = requests.iter().map(|request| Call {
            key: &request.key,
            keys: vec![request.key.as_str()],
        });
        let calls: Vec<_> = calls.collect();
        let publishers = self.client.key_channels.publishers();
        let write_args = |at: usize, command: &mut Cmd| {
            let request = requests[at];
            command
                .arg(self.texts.of(request.owner_id))
                .arg(request.min_hold_ms(now))
                .arg(self.texts.without_owner())
                .arg(request.key.redisson_channel())
                .arg(publishers);
        };
        let run_id = connection.first.run_id;
        let read = |at: usize, _: Moment, reply| {
            let reply = reply::notifying_release(reply)?;
            if let Some(message) = &reply.value {
                self.record(&requests[at].key, run_id, message);
            }
            let server_ms = reply.server_ms();
            let outcome = ReleaseOutcome::without_waiters(reply.value.is_some(), server_ms);
            Ok((outcome.told_by(run_id), Some(reply.server_us)))
        };
        let script = &REDISSON_RELEASE;
        self.client
            .run_each(
                connection, script, &calls, write_args, read, LOCK_REPLY, limit,
            )
            .await
    }

    /// Notes which clients learn of a release.
    fn record(&self, key: &LockKey, run_id: u64, message: &ReleaseMessage) {
        let channels = &self.client.key_channels;
        if message.receivers > channels.own_subscriptions(key, run_id) {
            channels.pause_after_release(key);
        }
        if let Some(refused) = &message.refused
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            self.client.reporter.emit(&LockEvent::ServerRestricted {
                server: &self.client.pool.connector.node().server,
                command: "PUBLISH",
                effect: "waiters in Redisson do not learn of all releases, and sleep until the end of the lease that \
                         they have seen",
                error: refused,
            });
        }
    }
}

/// Returns the outcome for a waiter that receives the messages of the key.
fn notified(mut outcome: AcquireOutcome) -> AcquireOutcome {
    if let AcquireOutcome::Busy { holder_expiry, .. } = &mut outcome
        && let HolderExpiry::Polled { ends } = *holder_expiry
    {
        *holder_expiry = HolderExpiry::Notified { ends };
    }
    outcome
}
