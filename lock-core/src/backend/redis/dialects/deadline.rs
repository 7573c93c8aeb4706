//! The dialect in which the value of the key is the time at which the lease ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::acquire_by_script;
use super::found::expect_deadline;
use crate::backend::Renewal;
use crate::backend::redis::client::{RedisClient, server_error};
use crate::backend::redis::connection::Connection;
use crate::backend::redis::errors::timed_out;
use crate::backend::redis::reply::{self, ScriptReply};
use crate::backend::redis::scripts::{DEADLINE_ACQUIRE, DEADLINE_RELEASE, DEADLINE_RENEW};
use crate::error::{BackendErrorKind, LockError};
use crate::sync::Mutex;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, ServerMs};
use lock_protocol::clock_sync::NotAfter;
use lock_protocol::dialect::CLOCK_TOLERANCE;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::resp::LOCK_REPLY;
use lock_protocol::ttl::whole_millis;

/// The time between the deadline and the expiry of the key. Until the key expires, no client of
/// this library takes the lock over: the clock of its holder may be behind.
fn spare_ms() -> u64 {
    whole_millis(CLOCK_TOLERANCE)
}

/// The written deadlines of all nodes of a cluster: a lock moves to another node with its slot.
pub(in crate::backend::redis) type SharedDeadlines = Arc<Mutex<WrittenDeadlines>>;

pub(super) struct Deadlines {
    client: Arc<RedisClient>,
    written: SharedDeadlines,
    renewing: tokio::sync::Mutex<()>,
}

impl Deadlines {
    pub(super) fn new(client: Arc<RedisClient>, written: SharedDeadlines) -> Self {
        Self {
            client,
            written,
            renewing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the deadline of a lease that begins at this server time.
    fn end_of(server_ms: ServerMs, ttl: Duration) -> u64 {
        server_ms.plus(whole_millis(ttl)).plus(1).as_u64()
    }

    /// Acquires by `SETNX key deadline`, or by `GETSET` if the deadline has passed.
    ///
    /// A copy without a reply is not cancelled; its deadline passes by itself. Another holder may
    /// have written the same deadline, and to treat it as one's own would make two holders.
    pub(super) async fn acquire(
        &self,
        sent: &mut SentAcquires,
        connection: &Connection,
        limit: Duration,
    ) -> Result<AcquireOutcome, LockError> {
        let ttl = sent.lease_config.ttl.as_duration();
        let args = |timing: NotAfter| {
            let deadline = Self::end_of(timing.server_ms, ttl);
            [deadline, spare_ms(), timing.not_after_ms.as_u64()]
                .map(|arg| arg.to_string())
                .to_vec()
        };
        let client = &self.client;
        let key = sent.key.clone();
        let (script, keys) = (&DEADLINE_ACQUIRE, &[key.as_str()]);
        let outcome =
            acquire_by_script(client, sent, connection, script, keys, args, limit).await?;
        let Some(outcome) = outcome else {
            return Ok(AcquireOutcome::Late);
        };
        match outcome.result {
            Ok(remaining) => {
                let deadline = Self::end_of(outcome.timing.server_ms, ttl);
                let mut written = self.written.lock();
                written.sweep(outcome.server_ms.as_u64());
                written.holds(sent.owner_id, deadline);
                Ok(AcquireOutcome::Held {
                    token: None,
                    sent: outcome.sent,
                    remaining: ttl.min(remaining),
                })
            }
            Err(found) => {
                sent.on_busy();
                expect_deadline(&sent.key, &found, outcome.server_ms, Clock::System.now())
            }
        }
    }

    /// Renews one batch after another. Each batch has to know the deadlines that the previous one
    /// wrote, and two batches on two connections may arrive in any order.
    pub(super) async fn renew(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        if renewals.is_empty() {
            return Vec::new();
        }
        let time_limit = Deadline::after(Clock::System, limit);
        let Ok(_turn) = tokio::time::timeout(limit, self.renewing.lock()).await else {
            let error = timed_out("other renewals are running");
            return renewals.iter().map(|_| Err(error.clone())).collect();
        };
        let args = |renewal: &Renewal, server_ms| {
            let deadline = Self::end_of(server_ms, renewal.ttl);
            // Recorded before it is sent: if the reply is lost, the key may hold either deadline.
            let known = self.written.lock().may_hold(renewal.owner_id, deadline);
            let args = [deadline, spare_ms()].into_iter().chain(known);
            args.map(|arg| arg.to_string()).collect()
        };
        let read = |renewal: &Renewal, server_ms, sent, reply| {
            let ScriptReply { value, server_us } = reply::dialect_renew(reply)?;
            let deadline = Self::end_of(server_ms, renewal.ttl);
            if value.is_none() {
                self.written.lock().extended(renewal.owner_id, deadline);
            }
            // The server's clock may be ahead of the last clock sync.
            let left = Duration::from_millis(deadline.saturating_sub(server_us / 1000));
            let value = RenewOutcome::unless_lost(value, renewal.ttl, sent).for_at_most(left);
            Ok(ScriptReply { value, server_us })
        };
        self.client
            .renew_each(&DEADLINE_RENEW, renewals, args, read, time_limit.left())
            .await
    }

    pub(super) async fn release(
        &self,
        release_request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let time_limit = Deadline::after(Clock::System, limit);
        let connection = self.client.connection_for(release_request, limit).await?;
        // The server may have closed an idle connection. A command that may be sent again finds
        // out.
        let alive = connection
            .call(&redis::cmd("TIME"), time_limit.left())
            .await?;
        alive.map_err(|error| server_error(&connection, &release_request.key, &error))?;
        let now = Clock::System.now();
        // Sent once: after the first copy has released the lock, the next holder may have written
        // the same deadline.
        let known = self.written.lock().release(release_request.owner_id)?;
        let args = [release_request.min_hold_ms(now), spare_ms()]
            .into_iter()
            .chain(known);
        let args: Vec<_> = args.map(|arg| arg.to_string()).collect();
        let (script, key, left) = (&DEADLINE_RELEASE, &release_request.key, time_limit.left());
        let sent = self
            .client
            .call_script(
                &connection,
                script,
                key,
                &[key.as_str()],
                &args,
                reply::was_owner,
                LOCK_REPLY,
                left,
            )
            .await;
        let mut written = self.written.lock();
        if let Err(error) = &sent
            && error.is_refusal()
        {
            written.release_was_refused(release_request.owner_id);
        }
        let (_, reply) = sent?;
        written.forget(release_request.owner_id);
        let outcome = ReleaseOutcome::without_waiters(reply.value, reply.server_ms());
        Ok(outcome.told_by(connection.first.run_id))
    }
}

/// The deadlines that were written, by owner id. The value of the key does not name its holder, so
/// this record decides whether a lock belongs to an owner id.
#[derive(Debug, Default)]
pub(in crate::backend::redis) struct WrittenDeadlines {
    locks: HashMap<OwnerId, DeadlineLock>,
    /// The number of locks after the last sweep.
    swept: usize,
}

/// Below this number of locks, a sweep is not worth its cost.
const SWEEP_FROM: usize = 64;

#[derive(Debug)]
struct DeadlineLock {
    /// The deadline that the server confirmed, then those of unconfirmed renewals.
    deadlines: Vec<u64>,
    release_is_sent: bool,
}

impl WrittenDeadlines {
    /// Records the deadline that the server has confirmed.
    fn holds(&mut self, owner_id: OwnerId, deadline: u64) {
        let lock = DeadlineLock {
            deadlines: vec![deadline],
            release_is_sent: false,
        };
        self.locks.insert(owner_id, lock);
    }

    /// Records a deadline that is about to be written, and returns those that it may replace. They
    /// are few: an unconfirmed renewal adds one, and the next confirmed one leaves one.
    fn may_hold(&mut self, owner_id: OwnerId, deadline: u64) -> Vec<u64> {
        let lock = self.locks.get_mut(&owner_id);
        // A renewal must not write a deadline that the release on its way does not know.
        let Some(lock) = lock.filter(|lock| !lock.release_is_sent) else {
            return Vec::new();
        };
        let before = lock.deadlines.clone();
        if !before.contains(&deadline) {
            lock.deadlines.push(deadline);
        }
        before
    }

    /// Records a renewal that wrote this deadline. Earlier deadlines are replaced; later ones may
    /// still arrive.
    fn extended(&mut self, owner_id: OwnerId, deadline: u64) {
        if let Some(lock) = self.locks.get_mut(&owner_id)
            && let Some(position) = lock.deadlines.iter().position(|known| *known == deadline)
        {
            lock.deadlines.drain(..position);
        }
    }

    /// Records that a release is about to be sent. Returns the deadlines that the key may hold;
    /// none if the owner id never held the lock.
    fn release(&mut self, owner_id: OwnerId) -> Result<Vec<u64>, LockError> {
        let Some(lock) = self.locks.get_mut(&owner_id) else {
            return Ok(Vec::new());
        };
        if std::mem::replace(&mut lock.release_is_sent, true) {
            return Err(LockError::backend(
                BackendErrorKind::ReleaseUnconfirmed,
                "the release got no reply",
            ));
        }
        Ok(lock.deadlines.clone())
    }

    /// Records that the server rejected the release without executing it, so it may be sent again.
    fn release_was_refused(&mut self, owner_id: OwnerId) {
        if let Some(lock) = self.locks.get_mut(&owner_id) {
            lock.release_is_sent = false;
        }
    }

    fn forget(&mut self, owner_id: OwnerId) {
        self.locks.remove(&owner_id);
    }

    /// Forgets locks that were never released and have expired. It runs when their number has
    /// doubled since the last sweep, so that many locks cost no more per lock than few.
    fn sweep(&mut self, server_ms: u64) {
        if self.locks.len() < SWEEP_FROM.max(self.swept * 2) {
            return;
        }
        let lasts = |lock: &DeadlineLock| lock.deadlines.iter().any(|end| *end >= server_ms);
        self.locks.retain(|_, lock| lasts(lock));
        self.swept = self.locks.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: OwnerId = OwnerId::nil();

    #[test]
    fn unconfirmed_renewal_leaves_two_possible_deadlines() {
        let mut written = WrittenDeadlines::default();
        assert!(written.may_hold(ONE, 5).is_empty());
        assert!(
            written.release(ONE).unwrap().is_empty(),
            "it was never held"
        );
        written.holds(ONE, 10);
        assert_eq!(written.may_hold(ONE, 20), [10]);
        assert_eq!(written.may_hold(ONE, 30), [10, 20]);
        // Replies may arrive in any order.
        written.extended(ONE, 20);
        assert_eq!(written.may_hold(ONE, 40), [20, 30]);
        written.extended(ONE, 40);
        written.extended(ONE, 30);
        assert_eq!(written.release(ONE).unwrap(), [40]);
        written.forget(ONE);
        assert!(written.release(ONE).unwrap().is_empty());
    }

    #[test]
    fn release_is_sent_once() {
        let mut written = WrittenDeadlines::default();
        written.holds(ONE, 10);
        assert_eq!(written.release(ONE).unwrap(), [10]);
        assert!(
            written.may_hold(ONE, 20).is_empty(),
            "no renewal follows a release"
        );
        let error = written.release(ONE).unwrap_err();
        assert!(error.to_string().contains("ends with its ttl"), "{error}");
    }

    #[test]
    fn expired_locks_are_forgotten() {
        let mut written = WrittenDeadlines::default();
        let lasting = OwnerId::random();
        written.holds(lasting, 1_000_000);
        for deadline in 0..10_000 {
            written.sweep(deadline);
            written.holds(OwnerId::random(), deadline);
        }
        assert!(written.locks.len() <= SWEEP_FROM, "{}", written.locks.len());
        assert_eq!(written.release(lasting).unwrap(), [1_000_000]);
        // Locks that have not expired stay known, however many there are.
        for _ in 0..10_000 {
            written.sweep(10_000);
            written.holds(OwnerId::random(), 20_000);
        }
        assert!(written.locks.len() > 10_000);
    }

    #[test]
    fn deadline_is_one_millisecond_after_the_ttl() {
        assert_eq!(
            Deadlines::end_of(ServerMs::new(1_000), Duration::from_secs(2)),
            3_001
        );
    }
}
