//! The state of one lock, and what each command does with it, as one pure state machine.
//!
//! `(state, command, now) -> (reply, notifications)`. The store in memory is a thin layer around
//! it. The Lua scripts implement the same machine on the server. The `script_equivalence` test gives
//! both the same commands and clock steps, and demands the same replies. Each rule has a name here (a
//! function or a variant), and a test in `tests/lock_state`.

use std::collections::BTreeMap;

use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::owner_id::OwnerId;
use crate::wire::{GroupValue, Member, OwnerValue, QueueEntry, WireNotification, is_native};

mod commands;
mod force;
mod group;
mod inspect;
mod notify;
mod queue;

pub use self::commands::{
    AcquireCommand, AcquireReply, Env, Purpose, RawHolder, ReleaseCommand, ReleaseReply,
    RenewCommand, RenewReply, Verdict,
};
pub use self::force::{
    ForceCommand, ForceGrant, ForceMode, ForceReply, ForceRequest, ForceVerdict, ForeignValues,
};
use self::group::Freed;
use self::queue::{Arrival, NextOwner, QueueScan};

/// How long the counter lives after it was seeded. Counting does not extend its life. A counter
/// seeded at server time S grows by less than one per microsecond, and expires on the same clock. So
/// the next seed is higher.
const COUNTER_LIFE_MS: u64 = 300_000;
/// The queue outlives the lock, and the last poll, by the longest silence of a waiter.
const QUEUE_LIFE_MS: u64 = 600_000;
/// Other clients write keys that expire in a million years. No native lock that has waiters lives longer than this.
const LONGEST_HOLDER_MS: u64 = 86_400_000;
/// The most entries that one call scans, so that it does not block the server. The caller repeats
/// the call when there are more.
pub const SCANNED_PER_CALL: usize = 100;

/// The value of a lock key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyValue {
    /// An exclusive native lock.
    Native(OwnerValue),
    /// A native lock that several may hold together. The holders are in [`LockState::holders`].
    Shared(GroupValue),
    /// A string that another client wrote: another library's lock, or no lock at all. Also the lock of a group
    /// that this version does not know.
    Foreign(String),
    /// A value that is not a string, by its Redis type.
    OtherType(&'static str),
}

/// A value with an expiry. It lives until the clock shows a later time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expiring<T> {
    pub value: T,
    /// `None` means that it lives until it is deleted.
    pub expires_ms: Option<ServerMs>,
}

impl<T> Expiring<T> {
    fn is_alive(&self, now_ms: ServerMs) -> bool {
        self.expires_ms.is_none_or(|end| now_ms <= end)
    }

    fn remaining_ms(&self, now_ms: ServerMs) -> Option<u64> {
        self.expires_ms.map(|end| end.since(now_ms))
    }
}

/// One lock: the key, its queue, its counter, its grace, and the members of a shared lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockState {
    pub key: Option<Expiring<KeyValue>>,
    pub queue: Option<Expiring<BTreeMap<u64, QueueEntry>>>,
    pub counter: Option<Expiring<u64>>,
    pub grace: Option<Expiring<()>>,
    /// The members of a shared lock, and the ends of their leases. They mean something only while the key holds
    /// a shared lock.
    pub holders: Option<Expiring<BTreeMap<Member, ServerMs>>>,
}

impl LockState {
    /// Whether nothing is left that a later command could see.
    pub fn is_empty(&self) -> bool {
        self.key.is_none()
            && self.queue.is_none()
            && self.counter.is_none()
            && self.grace.is_none()
            && self.holders.is_none()
    }

    /// Removes expired values, as a server does when a command touches a key.
    pub fn expire(&mut self, now_ms: ServerMs) {
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
        drop_dead(&mut self.holders, now_ms);
    }

    /// When the last value expires without further commands. `None` when a value has no expiry.
    pub fn ends_ms(&self) -> Option<ServerMs> {
        fn end<T>(slot: Option<&Expiring<T>>) -> Option<ServerMs> {
            slot.map_or(Some(ServerMs::new(0)), |expiring| expiring.expires_ms)
        }
        let key = end(self.key.as_ref())?;
        let queue = end(self.queue.as_ref())?;
        let counter = end(self.counter.as_ref())?;
        let grace = end(self.grace.as_ref())?;
        let holders = end(self.holders.as_ref())?;
        Some(key.max(queue).max(counter).max(grace).max(holders))
    }

    pub fn acquire(
        &mut self,
        command: &AcquireCommand<'_>,
        env: &Env<'_>,
    ) -> (AcquireReply, Vec<WireNotification>) {
        let now_ms = env.now_ms();
        if now_ms > command.not_after_ms {
            return (AcquireReply::Late, Vec::new());
        }
        self.expire(now_ms);
        self.settle(now_ms);
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
                if command.purpose == Purpose::Downgrade {
                    return self.downgrade(command, env);
                }
                let token = owner.token;
                let remaining_ms = raise(expires_ms, command.ttl_ms, now_ms);
                let reply = AcquireReply::Held {
                    token,
                    remaining_ms,
                };
                return (reply, Vec::new());
            }
            _ => {}
        }
        if let Some((token, remaining_ms)) = self.raise_members(
            (command.owner_id, command.label, command.kind),
            command.ttl_ms,
            now_ms,
        ) {
            let reply = AcquireReply::Held {
                token,
                remaining_ms,
            };
            return (reply, Vec::new());
        }
        match command.purpose {
            Purpose::Acquire => {}
            Purpose::Exchange(from) if self.is_owner(from) => return self.exchange(command, env),
            Purpose::Downgrade | Purpose::Exchange(_) => {
                return (AcquireReply::NotOwner, Vec::new());
            }
        }
        if self.queue.is_none() && self.fits(command.kind) {
            let caller = NextOwner::caller(command);
            let (floor_us, lead_us) = (command.floor_us, command.lead_us);
            let token = self.grant(&caller, floor_us, lead_us, env);
            let reply = AcquireReply::Held {
                token,
                remaining_ms: caller.lease_ms,
            };
            return (reply, Vec::new());
        }
        if self.is_done() {
            return self.leave_done_key(command, env);
        }
        if command.entry.is_none() && !self.may_admit(command.kind) {
            let holder = self.observed_holder(command.kind, 0, now_ms);
            return (AcquireReply::Busy { holder }, Vec::new());
        }
        self.take_turn(command, env)
    }

    /// Gives the lock to whose turn it is. That may be the caller, who otherwise waits for its own turn.
    fn take_turn(
        &mut self,
        command: &AcquireCommand<'_>,
        env: &Env<'_>,
    ) -> (AcquireReply, Vec<WireNotification>) {
        let now_ms = env.now_ms();
        let mut scan = QueueScan::default();
        let mut arrival = Arrival::Again;
        if let Some(entry) = command.entry {
            arrival = self.enqueue(entry, command.earlier);
            let is_full = self.is_full_for(arrival, command);
            if is_full || arrival == Arrival::Again && !self.may_grant() {
                scan.head_changed = self.remove_expired_entries(entry, is_full, now_ms);
            }
        }
        if self.may_grant() {
            let head_changed = scan.head_changed;
            scan = self.grant_next(Some(command), (command.floor_us, command.lead_us), env);
            scan.head_changed |= head_changed;
        }
        let notifications = self.notifications(&scan, env);
        let own = scan
            .granted
            .iter()
            .filter(|grant| grant.to.owner_id == command.owner_id)
            .max_by_key(|grant| grant.to.lease_ms);
        if let Some(grant) = own {
            let reply = AcquireReply::Held {
                token: grant.token,
                remaining_ms: grant.to.lease_ms,
            };
            return (reply, notifications);
        }
        if scan.more {
            if arrival == Arrival::New
                && let (Some(entry), Some(_)) = (command.entry, command.max_queue)
            {
                // The repeated call finds out whether the queue is full.
                self.leave_queue(std::slice::from_ref(entry));
            }
            return (AcquireReply::More, notifications);
        }
        let holder = self.observed_holder(command.kind, scan.grace_ms, now_ms);
        let Some(entry) = command.entry else {
            return (AcquireReply::Busy { holder }, notifications);
        };
        if self.is_full_for(arrival, command) {
            let rank = self.rank(entry);
            self.leave_queue(std::slice::from_ref(entry));
            return (AcquireReply::Full { rank, holder }, notifications);
        }
        let rank = self.record_poll(entry, &holder, now_ms);
        (AcquireReply::Queued { rank, holder }, notifications)
    }

    /// Refuses a caller for whom there is nothing to do in this period. It leaves the queue, so that the waiter behind
    /// it learns it next.
    fn leave_done_key(
        &mut self,
        command: &AcquireCommand<'_>,
        env: &Env<'_>,
    ) -> (AcquireReply, Vec<WireNotification>) {
        let mut scan = QueueScan::default();
        if let Some(entry) = command.entry {
            let has_left = self.leave_queue(std::slice::from_ref(entry));
            scan.head_changed = self.leave_queue(command.earlier) || has_left;
        }
        if scan.head_changed {
            self.remove_dead_heads_of_done(env);
        }
        let holder = self.observed_holder(command.kind, 0, env.now_ms());
        let notifications = self.notifications(&scan, env);
        (AcquireReply::Busy { holder }, notifications)
    }

    /// Makes the holder of the exclusive lock the first reader of a new group, and lets the readers behind it in.
    fn downgrade(
        &mut self,
        command: &AcquireCommand<'_>,
        env: &Env<'_>,
    ) -> (AcquireReply, Vec<WireNotification>) {
        self.key = None;
        let caller = NextOwner::caller(command);
        let (floor_us, lead_us) = (command.floor_us, command.lead_us);
        let token = self.grant(&caller, floor_us, lead_us, env);
        let scan = self.grant_next(None, (floor_us, lead_us), env);
        let reply = AcquireReply::Held {
            token,
            remaining_ms: caller.lease_ms,
        };
        (reply, self.notifications(&scan, env))
    }

    /// Makes the caller the owner in the place of an earlier owner id. The lease is exactly the caller's, so the first
    /// waiter learns when it ends now.
    fn exchange(
        &mut self,
        command: &AcquireCommand<'_>,
        env: &Env<'_>,
    ) -> (AcquireReply, Vec<WireNotification>) {
        let caller = NextOwner::caller(command);
        let token = self.grant(&caller, command.floor_us, command.lead_us, env);
        let scan = QueueScan {
            head_changed: true,
            ..QueueScan::default()
        };
        let reply = AcquireReply::Held {
            token,
            remaining_ms: caller.lease_ms,
        };
        (reply, self.notifications(&scan, env))
    }

    pub fn release(
        &mut self,
        command: &ReleaseCommand<'_>,
        env: &Env<'_>,
    ) -> (ReleaseReply, Vec<WireNotification>) {
        let now_ms = env.now_ms();
        self.expire(now_ms);
        let (was_owner, freed) = if self.is_owner(command.owner_id) {
            let end = match command.done_ms {
                0 => (command.min_hold_ms > 0).then(|| now_ms.plus(command.min_hold_ms)),
                period_ms => self.end_of_period(period_ms, now_ms),
            };
            let freed = if let Some(end) = end {
                let no_owner = match command.done_ms {
                    0 => OwnerId::nil(),
                    _ => OwnerId::done(),
                };
                self.hold_without_owner(no_owner, end);
                Freed::End
            } else {
                self.key = None;
                Freed::Key
            };
            (true, freed)
        } else {
            self.release_members(command, now_ms)
        };
        let left_queue = self.leave_queue(command.entries);
        let queue = self.queue.is_some();
        if was_owner && freed == Freed::Key && queue && command.grace_ms > 0 {
            self.grace = Some(Expiring {
                value: (),
                expires_ms: Some(now_ms.plus(command.grace_ms)),
            });
        }
        let mut scan = if queue && self.may_grant() {
            self.grant_next(None, (command.floor_us, command.lead_us), env)
        } else {
            QueueScan::default()
        };
        scan.head_changed |= left_queue || freed != Freed::Nothing;
        if scan.head_changed {
            self.remove_dead_heads_of_done(env);
        }
        let notifications = if queue {
            self.notifications(&scan, env)
        } else {
            Vec::new()
        };
        let verdict = match (was_owner, scan.granted.is_empty()) {
            (true, false) => Verdict::HandedOver,
            (true, true) => Verdict::Free,
            // A copy of this release has left the mark already.
            (false, _) if command.done_ms > 0 && self.is_done() => Verdict::Free,
            (false, _) => Verdict::NotOwner,
        };
        let more = scan.more;
        (ReleaseReply { verdict, more }, notifications)
    }

    /// Extends the lease, and never shortens it: a holder counts on the end that an earlier reply
    /// confirmed.
    pub fn renew(&mut self, command: &RenewCommand<'_>, now_ms: ServerMs) -> RenewReply {
        self.expire(now_ms);
        let renewed = match &mut self.key {
            Some(Expiring {
                value: KeyValue::Native(owner),
                expires_ms,
            }) if owner.owner_id == command.owner_id => {
                Some((owner.token, raise(expires_ms, command.ttl_ms, now_ms)))
            }
            // The renewal of an exclusive lock does not read the holders.
            _ if !command.kind.is_shared() => None,
            _ => self.raise_members(
                (command.owner_id, command.label, command.kind),
                command.ttl_ms,
                now_ms,
            ),
        };
        match renewed {
            Some((token, remaining_ms)) => RenewReply::Held {
                token,
                remaining_ms,
            },
            None => RenewReply::NotOwner,
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
    fn hold_without_owner(&mut self, no_owner: OwnerId, until_ms: ServerMs) {
        if let Some(Expiring {
            value: KeyValue::Native(owner),
            expires_ms,
        }) = &mut self.key
        {
            owner.owner_id = no_owner;
            *expires_ms = Some(until_ms);
        }
    }

    /// Returns the end of a period that began when the key was granted. Returns `None` if it is over.
    fn end_of_period(&self, period_ms: u64, now_ms: ServerMs) -> Option<ServerMs> {
        let Some(KeyValue::Native(owner)) = self.key.as_ref().map(|key| &key.value) else {
            return None;
        };
        // If the clock was set back, the grant is in the future, and the key must not stay locked for longer.
        let end = owner.since_ms.min(now_ms).plus(period_ms);
        (end > now_ms).then_some(end)
    }

    /// Returns whether the work that the lock protects is done for a period.
    fn is_done(&self) -> bool {
        self.is_owner(OwnerId::done())
    }

    /// Grants the key, or a place among its holders. Writes the counter before the key.
    fn grant(
        &mut self,
        to: &NextOwner,
        floor_us: u64,
        lead_us: u64,
        env: &Env<'_>,
    ) -> FencingToken {
        let now_ms = env.now_ms();
        if let Some(group) = to.kind.group() {
            if let Some(token) = self.join(to, now_ms) {
                return token;
            }
            let token = self.next_token(floor_us, lead_us, env);
            self.found(group, to, token, now_ms);
            return token;
        }
        let token = self.next_token(floor_us, lead_us, env);
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
}

impl KeyValue {
    /// Returns whether the value is that of a native lock of any version.
    fn is_native(&self) -> bool {
        match self {
            Self::Native(_) | Self::Shared(_) => true,
            Self::Foreign(text) => is_native(text),
            Self::OtherType(_) => false,
        }
    }

    /// Returns the text of a string, and nothing for other types.
    fn text(&self) -> String {
        match self {
            Self::Native(owner) => owner.to_string(),
            Self::Shared(group) => group.to_string(),
            Self::Foreign(text) => text.clone(),
            Self::OtherType(_) => String::new(),
        }
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
