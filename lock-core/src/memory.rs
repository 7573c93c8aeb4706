//! Keeps locks in memory: one process, no server.
//!
//! A thin layer over the lock state. There is no background worker: the releasing call hands the
//! lock over, the caller's tokio clock decides about expiry, and a renewed lock lives as long as
//! its guard. A thread in between would break tests on paused time: their timeouts would fire
//! before their grants.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use self::users::{User, Users};
use crate::error::{BackendErrorKind, LockError};
use crate::store::{
    Boxed, Call, Dialects, NotificationSink, Reach, Renewal, Store, StoreStatus, StoreTraits,
    Together, ends_set,
};
use crate::sync::Mutex;
use lock_protocol::acquisition::{
    AcquireOutcome, RenewOutcome, ReplyTimes, SendContext, SentAcquires,
};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::clock_sync::{NotAfter, UNKNOWN_RUN_ID};
use lock_protocol::dialect::InvalidDialectReason;
use lock_protocol::key::LockKey;
use lock_protocol::lease::LeaseConfig;
use lock_protocol::lock_state::{self, AcquireReply, Env, LockState, Verdict};
use lock_protocol::loss::LossReason;
use lock_protocol::mailbox::{Grant, Notification};
use lock_protocol::op::{OpKind, Outcome};
use lock_protocol::renew::Renew;
use lock_protocol::wire::{Mode, WireNotification};

/// The lease of a lock that lives as long as its guard.
const ENDLESS: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Keeps the locks of this process.
pub(crate) struct MemoryStore {
    state: Mutex<MemoryState>,
    /// The channel of all entries. This store publishes nothing, but an entry needs a channel.
    channel: Arc<str>,
    notifications: Arc<dyn NotificationSink>,
    grace: Duration,
    users: Mutex<Users>,
}

#[derive(Default)]
struct MemoryState {
    locks: HashMap<Arc<str>, LockState>,
    /// The lock states that expire by themselves. No later call may ever name their keys.
    ends: BTreeSet<(ServerMs, Arc<str>)>,
    /// One counter for all locks, so that a lock that is not held takes no memory.
    last_token: u64,
}

/// The number of expired lock states that one command removes: more than a command creates, and
/// few enough to cost little.
const SWEPT_PER_COMMAND: usize = 16;

impl MemoryState {
    /// Runs a command on a lock state, and records when the state now expires.
    fn run<T>(&mut self, key: &Arc<str>, run: impl FnOnce(&mut LockState) -> T) -> T {
        let lock_state = self.locks.entry(Arc::clone(key)).or_default();
        let before = end_of(lock_state);
        let result = run(lock_state);
        let after = end_of(lock_state);
        if lock_state.is_empty() {
            self.locks.remove(key);
        }
        if before != after {
            if let Some(end) = before {
                self.ends.remove(&(end, Arc::clone(key)));
            }
            self.ends.extend(after.map(|end| (end, Arc::clone(key))));
        }
        result
    }

    /// Removes expired lock states.
    fn sweep(&mut self, now_ms: ServerMs) {
        for _ in 0..SWEPT_PER_COMMAND {
            let Some((end, key)) = self.ends.first() else {
                break;
            };
            if now_ms <= *end {
                break;
            }
            let key = Arc::clone(key);
            self.run(&key, |lock_state| lock_state.expire(now_ms));
        }
        // A burst of locks would otherwise leave a map of its size.
        if self.locks.len() < self.locks.capacity() / 8 {
            let spare = self.locks.len() * 2;
            self.locks.shrink_to(spare);
        }
    }
}

/// Returns when a lock state expires by itself. Returns `None` for a lock that lives as long as its
/// guard: the release removes it.
fn end_of(lock_state: &LockState) -> Option<ServerMs> {
    let endless = ServerMs::new(endless_ms());
    let end = lock_state.ends_ms().filter(|end| *end < endless)?;
    (!lock_state.is_empty()).then_some(end)
}

impl MemoryStore {
    pub(crate) fn new(notifications: Arc<dyn NotificationSink>, grace: Duration) -> Self {
        Self {
            state: Mutex::default(),
            channel: "memory".into(),
            notifications,
            grace,
            users: Mutex::default(),
        }
    }

    /// Returns an error if the leases may end by another clock than the caller's.
    fn check_clock(&self) -> Result<(), LockError> {
        let (user, is_paused) = (User::current(), users::has_paused_clock());
        self.users.lock().check(user, is_paused)
    }

    fn admit(&self) -> Result<(), LockError> {
        let (user, is_paused) = (User::current(), users::has_paused_clock());
        self.users.lock().admit(user, is_paused)
    }

    /// Runs one command on a lock state, and delivers its notifications.
    fn command<T>(
        &self,
        key: &Arc<str>,
        now: Moment,
        run: impl FnOnce(&mut LockState, &Env<'_>, u64) -> (T, Vec<WireNotification>),
    ) -> T {
        let at = Env {
            now_us: micros(now),
            has_subscriber: &|_| true,
        };
        // A release is never refused, but on another clock it must not end the leases of other locks.
        let may_sweep = self.check_clock().is_ok();
        let (reply, notifications) = {
            let mut state = self.state.lock();
            let floor_us = state.last_token.max(at.now_us).saturating_add(1);
            let (reply, notifications, counted) = state.run(key, |lock_state| {
                let (reply, notifications) = run(lock_state, &at, floor_us);
                let counted = lock_state.counter.take().map_or(0, |counter| counter.value);
                (reply, notifications, counted)
            });
            state.last_token = state.last_token.max(counted);
            if may_sweep {
                state.sweep(ServerMs::from_micros(at.now_us));
            }
            (reply, notifications)
        };
        for notification in notifications {
            self.deliver(&notification, now);
        }
        reply
    }

    fn deliver(&self, notification: &WireNotification, now: Moment) {
        match *notification {
            WireNotification::Grant {
                owner_id,
                token,
                lease_ms,
                ..
            } => {
                let lease = Duration::from_millis(lease_ms);
                let grant = Grant {
                    token,
                    received: now,
                    lease,
                    until: Some(lock_protocol::lease::deadline(now, lease)),
                };
                self.notifications
                    .notify(owner_id, Notification::Grant(grant));
            }
            WireNotification::Head { to, holder_ms, .. } => {
                let holder_expires_at = now.plus(Duration::from_millis(holder_ms));
                self.notifications
                    .notify_by_short_id(to, Notification::Head { holder_expires_at });
            }
        }
    }

    pub(crate) fn acquire_now(&self, sent: &mut SentAcquires) -> AcquireOutcome {
        let now = Clock::Tokio.now();
        let lease = lease_of(sent.lease_config);
        let copy = sent.on_send(SendContext {
            origin: 0,
            run_id: UNKNOWN_RUN_ID,
            mode: Mode::Subscribed,
            channel: &self.channel,
            lease,
            now,
            // No network delays a command.
            not_after: NotAfter {
                server_ms: server_ms(now),
                not_after_ms: ServerMs::LAST,
            },
            command_timeout: Duration::ZERO,
        });
        let key = sent.key.text();
        let earlier: Vec<_> = sent.earlier().cloned().collect();
        let command = |lock_state: &mut LockState, at: &Env<'_>, floor_us| {
            let command = lock_state::AcquireCommand {
                owner_id: sent.owner_id,
                ttl_ms: lock_protocol::ttl::whole_millis(lease),
                floor_us,
                not_after_ms: ServerMs::LAST,
                label: &sent.label,
                entry: sent.entry(),
                lead_us: 0,
                kind: sent.lease_config.kind,
                purpose: sent.purpose(),
                earlier: &earlier,
                max_queue: sent.max_queue.get(),
            };
            lock_state.acquire(&command, at)
        };
        let mut reply = self.command(&key, now, command);
        while reply == AcquireReply::More {
            reply = self.command(&key, now, command);
        }
        let times = ReplyTimes {
            sent: now,
            received: now,
            server_us: micros(now),
            run_id: UNKNOWN_RUN_ID,
        };
        without_endless(sent.on_reply(&copy, reply, times))
    }

    pub(crate) fn release(&self, release_request: &ReleaseRequest) -> ReleaseOutcome {
        let now = Clock::Tokio.now();
        let grace_ms = lock_protocol::ttl::whole_millis(self.grace);
        let key = release_request.key.text();
        let release = |lock_state: &mut LockState, at: &Env<'_>, floor_us| {
            let call = lock_state::ReleaseCommand {
                owner_id: release_request.owner_id,
                floor_us,
                grace_ms,
                min_hold_ms: release_request.min_hold_ms(now),
                done_ms: release_request.keep.done_ms(),
                lead_us: 0,
                label: &release_request.label,
                kind: release_request.kind,
                entries: &release_request.entries,
            };
            lock_state.release(&call, at)
        };
        let released = self.command(&key, now, release);
        let mut more = released.more;
        while more {
            more = self.command(&key, now, release).more;
        }
        ReleaseOutcome {
            was_owner: released.verdict != Verdict::NotOwner,
            server_ms: Some(server_ms(now)),
            run_id: UNKNOWN_RUN_ID,
            more: false,
            notified_others: false,
        }
    }

    /// Renews the lease, which ends with the guard or the longest hold.
    pub(crate) fn renew_now(&self, renewal: &Renewal) -> RenewOutcome {
        self.renew_for(renewal, lease_of(renewal.lease_config))
    }

    /// Sets what is left of the lease, if the lock still has this owner.
    pub(crate) fn renew_for(&self, renewal: &Renewal, lease: Duration) -> RenewOutcome {
        let now = Clock::Tokio.now();
        let ttl_ms = lock_protocol::ttl::whole_millis(lease);
        let (reply, content) = self.command(&renewal.key.text(), now, |lock_state, at, _| {
            let command = lock_state::RenewCommand {
                owner_id: renewal.owner_id,
                ttl_ms,
                label: &renewal.label,
                kind: renewal.lease_config.kind,
            };
            let reply = lock_state.renew(&command, at.now_ms());
            ((reply, lock_state.content(at.now_ms())), Vec::new())
        });
        match reply {
            lock_state::RenewReply::Held { token, .. } => RenewOutcome::Held {
                token: Some(token),
                sent: now,
                remaining: lease,
            },
            lock_state::RenewReply::NotOwner => {
                RenewOutcome::NotOwner(LossReason::from_content(&content))
            }
        }
    }
}

impl MemoryStore {
    pub(crate) const TRAITS: StoreTraits = StoreTraits {
        clock: Clock::Tokio,
        needs_worker: false,
        one_server_per_lock: true,
        confirms_grants: false,
        dialects: Dialects::Some {
            has: |dialect| dialect.capabilities().works_in_memory(),
            others: InvalidDialectReason::NoServer,
        },
        longest_ttl: None,
    };

    /// Runs an operation.
    pub(crate) fn run(&self, kind: &mut OpKind<'_>) -> Result<Outcome, LockError> {
        Ok(match kind {
            OpKind::Acquire(sent) => {
                self.admit()?;
                Outcome::Acquired(self.acquire_now(sent))
            }
            OpKind::Renew(renewal, _) => {
                self.check_clock()?;
                Outcome::Renewed(self.renew_now(renewal))
            }
            OpKind::Release(request) => Outcome::Released(self.release(request)),
            OpKind::Inspect(key, _) => Outcome::Inspected(Box::new(self.inspect_now(key))),
            OpKind::Scan(request) => Outcome::Scanned(Box::new(self.scan_now(request))),
            OpKind::Force(request) => {
                self.check_clock()?;
                let (time, reply) = self.force_release_now(request);
                Outcome::Forced(time, Box::new(reply))
            }
            // Only servers have moving slots, quorums and replicas.
            OpKind::FreeKey(_) | OpKind::Raise(_) | OpKind::Wait(_) => {
                let text = "locks in memory have no servers";
                return Err(LockError::backend(BackendErrorKind::Unsupported, text));
            }
        })
    }
}

impl Store for MemoryStore {
    fn traits(&self) -> &StoreTraits {
        &Self::TRAITS
    }

    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        together: Together,
        _deadline: Deadline,
    ) -> Boxed<'a, ()> {
        Box::pin(async move {
            for at in 0..calls.len() {
                let outcome = self.run(&mut calls[at].op.kind);
                calls[at].outcome = Some(outcome);
                if ends_set(calls, at..at + 1, together) {
                    break;
                }
            }
        })
    }

    fn release_now(&self, request: &ReleaseRequest) {
        let _released = self.release(request);
    }

    fn reach(&self) -> Reach {
        Reach::Connected
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            connected: true,
            was_connected: true,
            subscribed: true,
            polling: None,
            last_reply: None,
            server_version: None,
        }
    }

    fn notifies(&self, _key: &LockKey, _limit: Duration) -> Boxed<'_, bool> {
        Box::pin(std::future::ready(true))
    }

    fn wait_connected(&self, _until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Only a lock that lives as long as its guard has a longer lease.
fn endless_ms() -> u64 {
    lock_protocol::ttl::whole_millis(ENDLESS / 2)
}

fn lease_of(lease_config: LeaseConfig) -> Duration {
    if lease_config.renew == Renew::Never {
        lease_config.ttl.as_duration()
    } else {
        lease_config.max_hold.unwrap_or(ENDLESS)
    }
}

fn micros(now: Moment) -> u64 {
    now.as_nanos() / 1000
}

fn server_ms(now: Moment) -> ServerMs {
    ServerMs::from_micros(micros(now))
}

/// Removes the remaining time of a lock that lives as long as its guard: it is not meaningful.
fn without_endless(mut outcome: AcquireOutcome) -> AcquireOutcome {
    if let Some(holder) = outcome.holder_mut() {
        holder.remaining = holder.remaining.filter(|left| *left < ENDLESS / 2);
    }
    outcome
}

mod admin;
#[cfg(test)]
mod tests;
mod users;
