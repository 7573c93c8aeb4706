//! What was sent to the server under one owner id, and what may remain there.

use std::sync::Arc;
use std::time::Duration;

use super::action::QueueLimit;
use super::outcome::{AcquireOutcome, FailureClass, ObservedHolder};
use crate::cleanup::{Keep, ReleaseOutcome, ReleaseRequest, ReleaseSubject};
use crate::clock::{Moment, ServerMs};
use crate::clock_sync::NotAfter;
use crate::key::LockKey;
use crate::kind::Kind;
use crate::lease::LeaseConfig;
use crate::lock_state::{AcquireReply, Purpose, RawHolder};
use crate::owner_id::{OwnerId, ShortId};
use crate::poll_schedule::{self, HolderExpiry};
use crate::renewal::Renewal;
use crate::ttl::whole_millis;
use crate::unconfirmed::Unconfirmed;
use crate::wire::{EntryKind, Mode, QueueEntry, is_native};

mod of_set;

/// The connection that last sent the acquire of an owner id, in the store's own numbering.
pub type Origin = u64;

/// The acquires of one owner id that were sent, and what they may have left on the server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SentAcquires {
    pub key: LockKey,
    pub owner_id: OwnerId,
    pub lease_config: LeaseConfig,
    pub label: Arc<str>,
    is_downgrade: bool,
    /// The end of the wait; `None` for a single attempt.
    pub waits_until: Option<Moment>,
    /// [`QueueLimit::NONE`] once the caller waits.
    pub max_queue: QueueLimit,
    /// The holder that the last attempt at a quorum of servers saw; that of the nil id for none.
    pub seen_holder: ShortId,
    entries: Entries,
    expires_at: Option<Moment>,
    presence: Presence,
    /// The connection of the last command, or [`NO_ORIGIN`].
    origin: Origin,
}

/// No connection has this number. An `Option` would cost each waiter eight bytes.
pub const NO_ORIGIN: Origin = 0;

/// What the server may have of the owner id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Presence {
    /// Neither the lock nor an entry.
    Absent,
    /// The lock or an entry. All commands were answered.
    Possible,
    /// Any of them, now or later: copies may still take effect.
    Unconfirmed(Unconfirmed),
}

impl Presence {
    fn unconfirmed(self) -> Option<Unconfirmed> {
        match self {
            Self::Unconfirmed(unconfirmed) => Some(unconfirmed),
            Self::Absent | Self::Possible => None,
        }
    }
}

/// What else the acquires carry. In one value, so that an exchange makes no acquisition larger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Entries {
    /// All entries that may be in the queue, the newest last.
    Queue(Vec<SentEntry>),
    /// An exchange has no entry. The owner id whose place it takes.
    Exchange(OwnerId),
}

impl Entries {
    fn as_slice(&self) -> &[SentEntry] {
        match self {
            Self::Queue(entries) => entries,
            Self::Exchange(_) => &[],
        }
    }

    fn queue_mut(&mut self) -> Option<&mut Vec<SentEntry>> {
        match self {
            Self::Queue(entries) => Some(entries),
            Self::Exchange(_) => None,
        }
    }

    fn last_mut(&mut self) -> Option<&mut SentEntry> {
        self.queue_mut()?.last_mut()
    }
}

/// An entry that may be in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SentEntry {
    entry: QueueEntry,
    /// The latest server time at which a sent command may add the entry.
    not_after_ms: ServerMs,
}

/// The `not_after_ms` of an entry that no command has carried.
const NEVER_SENT: ServerMs = ServerMs::new(0);

/// How and when an acquire with a queue entry is sent.
#[derive(Clone, Copy, Debug)]
pub struct SendContext<'a> {
    pub origin: Origin,
    /// The server process that it is sent to.
    pub run_id: u64,
    pub mode: Mode,
    pub channel: &'a Arc<str>,
    /// The lease that a handover to the entry sets.
    pub lease: Duration,
    pub now: Moment,
    pub not_after: NotAfter,
    pub command_timeout: Duration,
}

/// One sent copy of an acquire, with the state before it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SentCopy {
    unconfirmed_before: Option<Unconfirmed>,
    /// The `not_after_ms` of its entry before it was sent.
    entry_not_after_ms_before: ServerMs,
}

/// When a copy was sent, when its reply arrived, and the server time in the reply.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTimes {
    pub sent: Moment,
    pub received: Moment,
    pub server_us: u64,
    /// The server process that replied.
    pub run_id: u64,
}

impl SentAcquires {
    pub fn new(
        owner_id: OwnerId,
        key: LockKey,
        lease_config: LeaseConfig,
        label: Arc<str>,
        waits_until: Option<Moment>,
    ) -> Self {
        Self {
            key,
            owner_id,
            lease_config,
            label,
            is_downgrade: false,
            waits_until,
            max_queue: QueueLimit::NONE,
            seen_holder: OwnerId::nil().short(),
            entries: Entries::Queue(Vec::new()),
            expires_at: None,
            presence: Presence::Absent,
            origin: NO_ORIGIN,
        }
    }

    /// Returns the acquires of a downgrade: a holder of the exclusive lock becomes a reader under the same owner
    /// id. Copies of its acquire may still take effect, as the release request knows.
    pub fn downgrade(held: ReleaseRequest, lease_config: LeaseConfig) -> Self {
        let lease_config = LeaseConfig {
            kind: Kind::Read,
            ..lease_config
        };
        let mut sent = Self::new(held.owner_id, held.key, lease_config, held.label, None);
        sent.is_downgrade = true;
        let entries = held.entries.into_iter().map(|entry| SentEntry {
            entry,
            // The acquire carried it, and the final cancel has to remove it.
            not_after_ms: ServerMs::LAST,
        });
        sent.entries = Entries::Queue(entries.collect());
        sent.presence = held
            .unconfirmed
            .map_or(Presence::Possible, Presence::Unconfirmed);
        sent
    }

    /// Makes these the acquires of an exchange, which takes the lock over from an earlier owner id.
    pub(super) fn exchanging(mut self, from: OwnerId) -> Self {
        self.entries = Entries::Exchange(from);
        self
    }

    /// Returns whether the acquires take a lock over from an earlier owner id.
    pub fn is_exchange(&self) -> bool {
        matches!(self.entries, Entries::Exchange(_))
    }

    /// Returns what the acquires are for.
    pub fn purpose(&self) -> Purpose {
        match self.entries {
            Entries::Exchange(from) => Purpose::Exchange(from),
            Entries::Queue(_) if self.is_downgrade => Purpose::Downgrade,
            Entries::Queue(_) => Purpose::Acquire,
        }
    }

    /// Returns the same acquisition under a new owner id. The old one must not be used again.
    pub(crate) fn with_owner_id(&self, owner_id: OwnerId) -> Self {
        let mut sent = Self::new(
            owner_id,
            self.key.clone(),
            self.lease_config,
            Arc::clone(&self.label),
            self.waits_until,
        );
        sent.seen_holder = self.seen_holder;
        sent
    }

    /// Records that a copy is about to be sent, with the entry that [`entry`](Self::entry) then
    /// returns if the acquisition waits. Has to run before anything is sent.
    pub fn on_send(&mut self, context: SendContext<'_>) -> SentCopy {
        self.update_entry(context);
        let SendContext {
            origin,
            run_id,
            now,
            not_after,
            command_timeout,
            ..
        } = context;
        let until_ms = not_after.not_after_ms;
        let copy = Unconfirmed::new(until_ms, run_id, now, command_timeout);
        self.on_send_without_entry(origin, copy)
    }

    /// As [`on_send`](Self::on_send), in a dialect without a queue.
    pub fn on_send_without_entry(&mut self, origin: Origin, copy: Unconfirmed) -> SentCopy {
        let not_after_ms = copy.until_ms();
        let unconfirmed_before = self.presence.unconfirmed();
        let unconfirmed = unconfirmed_before.map_or(copy, |before| before.and(copy));
        self.presence = Presence::Unconfirmed(unconfirmed);
        let mut entry_not_after_ms_before = NEVER_SENT;
        if let Some(last) = self.entries.last_mut() {
            entry_not_after_ms_before = last.not_after_ms;
            last.not_after_ms = last.not_after_ms.max(not_after_ms);
        }
        self.origin = origin;
        SentCopy {
            unconfirmed_before,
            entry_not_after_ms_before,
        }
    }

    /// Makes the last entry the one to send, if the acquisition waits. Keeps the current entry, or
    /// adds a new one when the mode or channel has changed or the entry expires soon.
    fn update_entry(&mut self, context: SendContext<'_>) {
        let Some(deadline) = self.waits_until else {
            return;
        };
        let SendContext { mode, now, .. } = context;
        if let (Some(last), Some(expires_at)) = (self.entry(), self.expires_at)
            && last.mode == mode
            && last.channel == *context.channel
            && !poll_schedule::needs_extension(mode, now, expires_at, deadline)
        {
            return;
        }
        let left = deadline.since(now);
        let entry_lifetime = poll_schedule::entry_lifetime(
            mode,
            left,
            self.lease_config.ttl,
            context.command_timeout,
        );
        let Entries::Queue(entries) = &mut self.entries else {
            return;
        };
        self.expires_at = Some(now.plus(entry_lifetime));
        let server_ms = context.not_after.server_ms;
        let entry = QueueEntry {
            owner_id: self.owner_id,
            mode,
            kind: EntryKind::Known(self.lease_config.kind),
            lease_ms: whole_millis(context.lease),
            expires_at_ms: server_ms.plus(whole_millis(entry_lifetime)),
            channel: Arc::clone(context.channel),
            label: Arc::clone(&self.label),
        };
        // The server's clock may have been set back, so the new entry can equal an earlier one.
        let same = entries.iter().position(|known| known.entry == entry);
        let sent_entry = same.map(|at| entries.remove(at));
        // Most acquisitions have one entry.
        entries.reserve_exact(1);
        entries.push(sent_entry.unwrap_or(SentEntry {
            entry,
            not_after_ms: NEVER_SENT,
        }));
    }

    /// Records the reply to a native acquire, and returns what it means.
    pub fn on_reply(
        &mut self,
        copy: &SentCopy,
        reply: AcquireReply,
        times: ReplyTimes,
    ) -> AcquireOutcome {
        self.on_any_reply(copy);
        match reply {
            AcquireReply::Late => AcquireOutcome::Late,
            AcquireReply::More => AcquireOutcome::More,
            AcquireReply::NotOwner => {
                self.on_busy();
                AcquireOutcome::NotOwner
            }
            AcquireReply::Foreign { found } => AcquireOutcome::Foreign { found },
            AcquireReply::Held {
                token,
                remaining_ms,
            } => AcquireOutcome::Held {
                token: Some(token),
                sent: times.sent,
                remaining: Duration::from_millis(remaining_ms),
            },
            AcquireReply::Full { rank, holder } => {
                self.on_busy();
                AcquireOutcome::Full {
                    rank,
                    holder: observed_holder(&holder, times.server_us),
                }
            }
            AcquireReply::Queued { rank, holder } => {
                // A waiter that loses its entry later comes back without a limit.
                self.max_queue = QueueLimit::NONE;
                // The time of another process says nothing about copies that this one has not seen.
                let unconfirmed = self.presence.unconfirmed();
                if unconfirmed.is_none_or(|copies| !copies.is_of_another(times.run_id)) {
                    self.forget_earlier_entries(ServerMs::from_micros(times.server_us));
                }
                let is_polling = self
                    .entry()
                    .is_some_and(|entry| entry.mode == Mode::Polling);
                AcquireOutcome::Queued {
                    rank,
                    holder_expiry: holder_expiry(&holder, times.received),
                    holder: observed_holder(&holder, times.server_us),
                    poll: is_polling.then(|| poll_schedule::poll_interval(self.lease_config.ttl)),
                }
            }
            AcquireReply::Busy { holder } => {
                self.on_busy();
                AcquireOutcome::Busy {
                    holder_expiry: holder_expiry(&holder, times.received),
                    holder: observed_holder(&holder, times.server_us),
                }
            }
        }
    }

    /// Records any reply to this copy: it can take effect no more.
    pub fn on_any_reply(&mut self, copy: &SentCopy) {
        self.presence = match copy.unconfirmed_before {
            Some(unconfirmed) => Presence::Unconfirmed(unconfirmed),
            None => Presence::Possible,
        };
    }

    /// Records an error that the server returned for this copy. If it is a known refusal, the copy was not
    /// executed, and an entry that no other copy carried is not in the queue. An unknown one may come from a proxy
    /// behind which the copy is still on its way.
    pub fn on_error_reply(&mut self, copy: &SentCopy, class: FailureClass) {
        if class == FailureClass::Unknown {
            return;
        }
        self.on_any_reply(copy);
        if matches!(class, FailureClass::OutOfMemory | FailureClass::Retry) {
            self.forget_unsent_entry(copy);
        }
    }

    /// Forgets the entry of a copy that was not executed, unless another copy carried it.
    fn forget_unsent_entry(&mut self, copy: &SentCopy) {
        if let Some(last) = self.entries.last_mut() {
            last.not_after_ms = copy.entry_not_after_ms_before;
        }
        let unsent = |last: &mut SentEntry| last.not_after_ms == NEVER_SENT;
        let entries = self.entries.queue_mut();
        if entries.and_then(|all| all.pop_if(unsent)).is_some() {
            self.expires_at = None;
        }
    }

    /// Records the reply that the owner id has neither the lock nor an entry.
    pub fn on_busy(&mut self) {
        if self.presence == Presence::Possible {
            self.presence = Presence::Absent;
        }
    }

    /// Records that the reply to the first command granted the lock: then the server has not queued
    /// the entry, or has removed it. The release does not have to remove it again.
    pub(super) fn on_first_grant(&mut self) {
        if self.presence.unconfirmed().is_none()
            && let Some(entries) = self.entries.queue_mut()
        {
            entries.clear();
        }
    }

    /// Records a confirmed cancel.
    pub(super) fn on_cancelled(&mut self, outcome: &ReleaseOutcome, now: Moment) {
        if self.release_request().is_finished_by(outcome, now) {
            self.presence = Presence::Absent;
        }
    }

    /// Forgets earlier entries: the server has removed them from the queue at this time. An entry
    /// stays known while a command that carries it can still arrive in time.
    fn forget_earlier_entries(&mut self, server_ms: ServerMs) {
        let Some(entries) = self.entries.queue_mut() else {
            return;
        };
        let last = entries.pop();
        entries.retain(|sent_entry| server_ms <= sent_entry.not_after_ms);
        entries.extend(last);
    }

    /// Returns the entry that the next copy carries.
    pub fn entry(&self) -> Option<&QueueEntry> {
        let last = self.entries.as_slice().last();
        last.map(|sent_entry| &sent_entry.entry)
    }

    /// Returns the entries that may have been in the queue before the last one.
    pub fn earlier(&self) -> impl ExactSizeIterator<Item = &QueueEntry> {
        let all = self.entries.as_slice();
        let earlier = all.split_last().map_or(&[][..], |(_, earlier)| earlier);
        earlier.iter().map(|sent_entry| &sent_entry.entry)
    }

    /// Returns the longest lease that a handover to one of the entries sets.
    pub(super) fn longest_handover(&self) -> Duration {
        let leases = self
            .entries
            .as_slice()
            .iter()
            .map(|sent_entry| sent_entry.entry.lease_ms);
        Duration::from_millis(leases.max().unwrap_or(0))
    }

    /// Returns whether a copy was sent under this owner id.
    pub fn was_sent(&self) -> bool {
        self.origin != NO_ORIGIN
    }

    /// Returns whether the server may have the lock or an entry of the owner id, now or later.
    pub(crate) fn may_be_present(&self) -> bool {
        self.presence != Presence::Absent
    }

    /// Returns a renewal of the lease that these acquires may have got, which no server process before `confirmed_at`
    /// has had.
    pub fn renewal(&self, confirmed_at: Moment) -> Renewal {
        Renewal {
            key: self.key.clone(),
            owner_id: self.owner_id,
            ttl: self.lease_config.ttl.as_duration(),
            lease_config: self.lease_config,
            label: Arc::clone(&self.label),
            confirmed_at,
        }
    }

    /// Returns what a release or a cancel has to undo.
    pub fn release_request(&self) -> ReleaseRequest {
        let entries = self.entries.as_slice().iter();
        ReleaseRequest {
            key: self.key.clone(),
            owner_id: self.owner_id,
            ttl: self.lease_config.ttl,
            entries: entries.map(|sent_entry| sent_entry.entry.clone()).collect(),
            origin: (self.origin != NO_ORIGIN).then_some(self.origin),
            unconfirmed: self.presence.unconfirmed(),
            keep: Keep::Nothing,
            subject: ReleaseSubject::Acquire,
            kind: self.lease_config.kind,
            label: Arc::clone(&self.label),
        }
    }
}

fn holder_expiry(holder: &RawHolder, received: Moment) -> HolderExpiry {
    let Some(remaining_ms) = holder.remaining_ms else {
        return HolderExpiry::NoExpiry;
    };
    let ends = received.plus(Duration::from_millis(remaining_ms));
    if is_native(&holder.value) {
        HolderExpiry::Native { ends }
    } else {
        HolderExpiry::Foreign { ends }
    }
}

fn observed_holder(holder: &RawHolder, server_us: u64) -> Option<ObservedHolder> {
    ObservedHolder::from_value(
        &holder.value,
        holder.remaining_ms.map(Duration::from_millis),
        Some(ServerMs::from_micros(server_us)),
    )
}

#[cfg(test)]
mod tests;
