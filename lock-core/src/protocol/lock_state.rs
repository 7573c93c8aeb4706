//! The state of one lock, and what each command does with it, as one pure state machine.
//!
//! `(state, command, now) -> (reply, notifications)`. The in-memory backend is a thin layer around
//! it. The Lua scripts implement the same machine on the server. The `script_equivalence` test gives
//! both the same commands and clock steps, and demands the same replies. Each rule has a name here (a
//! function or a variant), and a test in `tests/lock_state`.

use std::collections::BTreeMap;

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{Mode, OwnerValue, QueueEntry, WireNotification};

mod commands;
mod force;
mod inspect;
mod queue;

pub(crate) use self::commands::{
    AcquireCommand, AcquireReply, Env, RawHolder, ReleaseCommand, ReleaseReply, RenewReply, Verdict,
};
pub(crate) use self::force::{ForceCommand, ForceGrant, ForceMode, ForceReply, ForceVerdict};
use self::queue::{NextOwner, QueueScan};

/// How long the counter lives after it was seeded. Counting does not extend its life. A counter
/// seeded at server time S grows by less than one per microsecond, and expires on the same clock. So
/// the next seed is higher.
const COUNTER_LIFE_MS: u64 = 300_000;
/// The queue outlives the lock, and the last poll, by the longest silence of a waiter.
const QUEUE_LIFE_MS: u64 = 600_000;
/// Other clients write keys that expire in a million years. No native lock lives longer than this.
const LONGEST_HOLDER_MS: u64 = 86_400_000;
/// The most entries that one call scans, so that it does not block the server. The caller repeats
/// the call when there are more.
pub(crate) const SCANNED_PER_CALL: usize = 100;

/// The value of a lock key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "only the tests store foreign values in a state")
)]
pub(crate) enum KeyValue {
    /// A native lock.
    Native(OwnerValue),
    /// A string that another client wrote: another library's lock, or no lock at all.
    Foreign(String),
    /// A value that is not a string, by its Redis type.
    OtherType(&'static str),
}

/// A value with an expiry. It lives until the clock shows a later time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expiring<T> {
    pub(crate) value: T,
    /// `None` means that it lives until it is deleted.
    pub(crate) expires_ms: Option<ServerMs>,
}

impl<T> Expiring<T> {
    fn is_alive(&self, now_ms: ServerMs) -> bool {
        self.expires_ms.is_none_or(|end| now_ms <= end)
    }

    fn remaining_ms(&self, now_ms: ServerMs) -> Option<u64> {
        self.expires_ms.map(|end| end.since(now_ms))
    }
}

/// One lock: the key, its queue, its counter and its grace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LockState {
    pub(crate) key: Option<Expiring<KeyValue>>,
    pub(crate) queue: Option<Expiring<BTreeMap<u64, QueueEntry>>>,
    pub(crate) counter: Option<Expiring<u64>>,
    pub(crate) grace: Option<Expiring<()>>,
}

impl LockState {
    /// Whether nothing is left that a later command could see.
    pub(crate) fn is_empty(&self) -> bool {
        self.key.is_none() && self.queue.is_none() && self.counter.is_none() && self.grace.is_none()
    }

    /// Removes expired values, as a server does when a command touches a key.
    pub(crate) fn expire(&mut self, now_ms: ServerMs) {
        fn drop_dead<T>(slot: &mut Option<Expiring<T>>, now_ms: ServerMs) {
            if slot
                .as_ref()
                .is_some_and(|expiring| !expiring.is_alive(now_ms))
            {
                *slot = None;
            }
        }
        drop_dead(&mut self.key, now_ms);
        drop_dead(&mut self.queue, now_ms);
        drop_dead(&mut self.counter, now_ms);
        drop_dead(&mut self.grace, now_ms);
    }

    /// When the last value expires without further commands. `None` when a value has no expiry.
    pub(crate) fn ends_ms(&self) -> Option<ServerMs> {
        fn end<T>(slot: Option<&Expiring<T>>) -> Option<ServerMs> {
            slot.map_or(Some(ServerMs::new(0)), |expiring| expiring.expires_ms)
        }
        let key = end(self.key.as_ref())?;
        let queue = end(self.queue.as_ref())?;
        let counter = end(self.counter.as_ref())?;
        let grace = end(self.grace.as_ref())?;
        Some(key.max(queue).max(counter).max(grace))
    }

    pub(crate) fn acquire(
        &mut self,
        command: &AcquireCommand<'_>,
        env: &Env<'_>,
    ) -> (AcquireReply, Vec<WireNotification>) {
        let now_ms = env.now_ms();
        if now_ms > command.not_after_ms {
            return (AcquireReply::Late, Vec::new());
        }
        self.expire(now_ms);
        let mut scan = QueueScan::default();
        match &mut self.key {
            Some(Expiring {
                value: KeyValue::OtherType(found),
                ..
            }) => {
                let found = (*found).to_owned();
                return (AcquireReply::Foreign { found }, Vec::new());
            }
            Some(Expiring {
                value: KeyValue::Native(owner),
                expires_ms,
            }) if owner.owner_id == command.owner_id => {
                let token = owner.token;
                return (
                    confirm_again(token, expires_ms, command.ttl_ms, now_ms),
                    Vec::new(),
                );
            }
            Some(_) if command.entry.is_none() => {
                let holder = self.observed_holder(0, now_ms);
                return (AcquireReply::Busy { holder }, Vec::new());
            }
            None if self.queue.is_none() => scan.next_owner = Some(NextOwner::caller(command)),
            Some(_) | None => {}
        }
        let queue = scan.next_owner.is_none();
        let mut head_left = false;
        if let (true, Some(entry)) = (queue, command.entry) {
            let was_queued = self.enqueue(entry, command.earlier);
            if was_queued && self.key.is_some() {
                head_left = self.remove_expired_entries(entry, now_ms);
            }
        }
        if queue && self.key.is_none() {
            scan = self.grant_next(Some(command), env);
        }
        let granted = scan.next_owner.as_ref();
        let token = granted.map(|to| self.grant(to, command.floor_us, command.lead_us, env));
        let moved = queue && (granted.is_some() || head_left || scan.notify_head);
        let notifications = self.notifications(granted.zip(token), moved, scan.grace_ms, env);
        if let (Some(to), Some(token)) = (granted, token)
            && to.owner_id == command.owner_id
        {
            let remaining_ms = to.lease_ms;
            return (
                AcquireReply::Held {
                    token,
                    remaining_ms,
                },
                notifications,
            );
        }
        if scan.more {
            return (AcquireReply::More, notifications);
        }
        let holder = self.observed_holder(scan.grace_ms, now_ms);
        let Some(entry) = command.entry else {
            return (AcquireReply::Busy { holder }, notifications);
        };
        let rank = self.record_poll(entry, &holder, now_ms);
        (AcquireReply::Queued { rank, holder }, notifications)
    }

    pub(crate) fn release(
        &mut self,
        command: &ReleaseCommand<'_>,
        env: &Env<'_>,
    ) -> (ReleaseReply, Vec<WireNotification>) {
        let now_ms = env.now_ms();
        self.expire(now_ms);
        let was_owner = self.is_owner(command.owner_id);
        let stays_held = was_owner && command.min_hold_ms > 0;
        if stays_held {
            self.hold_without_owner(now_ms.plus(command.min_hold_ms));
        } else if was_owner {
            self.key = None;
        }
        let moved = self.leave_queue(command.entries) || was_owner;
        let queue = self.queue.is_some();
        if was_owner && !stays_held && queue && command.grace_ms > 0 {
            self.grace = Some(Expiring {
                value: (),
                expires_ms: Some(now_ms.plus(command.grace_ms)),
            });
        }
        let scan = if queue && self.key.is_none() {
            self.grant_next(None, env)
        } else {
            QueueScan::default()
        };
        let granted = scan.next_owner.as_ref();
        let token = granted.map(|to| self.grant(to, command.floor_us, command.lead_us, env));
        let moved = queue && (moved || granted.is_some() || scan.notify_head);
        let notifications = self.notifications(granted.zip(token), moved, scan.grace_ms, env);
        let verdict = match (was_owner, granted.is_some()) {
            (true, true) => Verdict::HandedOver,
            (true, false) => Verdict::Free,
            (false, _) => Verdict::NotOwner,
        };
        let more = scan.more;
        (ReleaseReply { verdict, more }, notifications)
    }

    /// Extends the lease, and never shortens it: a holder counts on the end that an earlier reply
    /// confirmed.
    pub(crate) fn renew(&mut self, owner_id: OwnerId, ttl_ms: u64, now_ms: ServerMs) -> RenewReply {
        self.expire(now_ms);
        match &mut self.key {
            Some(Expiring {
                value: KeyValue::Native(owner),
                expires_ms,
            }) if owner.owner_id == owner_id => RenewReply::Held {
                token: owner.token,
                remaining_ms: raise(expires_ms, ttl_ms, now_ms),
            },
            _ => RenewReply::NotOwner,
        }
    }

    fn is_owner(&self, owner_id: OwnerId) -> bool {
        matches!(
            &self.key,
            Some(Expiring { value: KeyValue::Native(owner), .. }) if owner.owner_id == owner_id
        )
    }

    /// Keeps the key locked without an owner. A renewal or an acquire that the release overtook finds
    /// that it no longer owns the key.
    fn hold_without_owner(&mut self, until_ms: ServerMs) {
        if let Some(Expiring {
            value: KeyValue::Native(owner),
            expires_ms,
        }) = &mut self.key
        {
            owner.owner_id = OwnerId::nil();
            *expires_ms = Some(until_ms);
        }
    }

    /// Writes the counter before the key.
    fn grant(
        &mut self,
        to: &NextOwner,
        floor_us: u64,
        lead_us: u64,
        env: &Env<'_>,
    ) -> FencingToken {
        let token = self.next_token(floor_us, lead_us, env);
        let now_ms = env.now_ms();
        self.key = Some(Expiring {
            value: KeyValue::Native(OwnerValue {
                owner_id: to.owner_id,
                token,
                since_ms: now_ms,
                label: to.label.to_string(),
            }),
            expires_ms: Some(now_ms.plus(to.lease_ms)),
        });
        token
    }

    /// The counter grows by one. It is seeded from the time when it was lost, rolled back or new.
    fn next_token(&mut self, floor_us: u64, lead_us: u64, env: &Env<'_>) -> FencingToken {
        let counter = self.counter.get_or_insert(Expiring {
            value: 0,
            expires_ms: None,
        });
        counter.value = counter.value.saturating_add(1);
        if counter.value < floor_us {
            let seed_us = floor_us.max(env.now_us.saturating_add(lead_us));
            // The expiry counts from the seed, which may be ahead of the clock, so that the next seed
            // is higher.
            *counter = Expiring {
                value: seed_us,
                expires_ms: Some(ServerMs::from_micros(seed_us).plus(COUNTER_LIFE_MS)),
            };
        }
        FencingToken::new(counter.value)
    }

    /// A grant for the new owner, and a head-of-queue notification for the waiter that is first now.
    fn notifications(
        &self,
        granted: Option<(&NextOwner, FencingToken)>,
        moved: bool,
        grace_ms: u64,
        env: &Env<'_>,
    ) -> Vec<WireNotification> {
        let mut notifications = Vec::new();
        if !moved {
            return notifications;
        }
        if let Some((to, token)) = granted
            && to.channel.is_some()
        {
            notifications.push(WireNotification::Grant {
                owner_id: to.owner_id,
                token,
                server_us: env.now_us,
                lease_ms: to.lease_ms,
            });
        }
        let head = self
            .queue
            .as_ref()
            .and_then(|queue| queue.value.values().next());
        if let Some(head) = head.filter(|head| head.mode == Mode::Subscribed) {
            notifications.push(WireNotification::Head {
                to: head.owner_id.short(),
                server_us: env.now_us,
                holder_ms: match (&granted, &self.key) {
                    (Some((to, _)), _) => to.lease_ms,
                    (
                        None,
                        Some(
                            key @ Expiring {
                                value: KeyValue::Native(_),
                                ..
                            },
                        ),
                    ) => key.remaining_ms(env.now_ms()).unwrap_or(0),
                    // The release of a foreign holder sends no notification, so the first waiter has
                    // to poll now.
                    (None, _) => grace_ms,
                },
            });
        }
        notifications
    }

    fn observed_holder(&self, grace_ms: u64, now_ms: ServerMs) -> RawHolder {
        match &self.key {
            None => RawHolder {
                remaining_ms: Some(grace_ms),
                value: String::new(),
            },
            Some(key) => RawHolder {
                remaining_ms: key.remaining_ms(now_ms),
                value: match &key.value {
                    KeyValue::Native(owner) => owner.to_string(),
                    KeyValue::Foreign(text) => text.clone(),
                    KeyValue::OtherType(_) => String::new(),
                },
            },
        }
    }
}

/// A repeated acquire gives the same reply: the same token, and at least the requested ttl.
fn confirm_again(
    token: FencingToken,
    expires_ms: &mut Option<ServerMs>,
    ttl_ms: u64,
    now_ms: ServerMs,
) -> AcquireReply {
    AcquireReply::Held {
        token,
        remaining_ms: raise(expires_ms, ttl_ms, now_ms),
    }
}

/// Extends an expiry to at least `ttl_ms` from now, and returns the remaining time. A key without an
/// expiry gets one.
fn raise(expires_ms: &mut Option<ServerMs>, ttl_ms: u64, now_ms: ServerMs) -> u64 {
    let remaining = expires_ms.map_or(0, |end| end.since(now_ms));
    let remaining_ms = remaining.max(ttl_ms);
    *expires_ms = Some(now_ms.plus(remaining_ms));
    remaining_ms
}
