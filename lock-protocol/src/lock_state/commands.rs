//! The commands of the lock state machine, and their replies.

use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::Kind;
use crate::owner_id::OwnerId;
use crate::wire::QueueEntry;

/// The arguments of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireCommand<'a> {
    pub owner_id: OwnerId,
    pub ttl_ms: u64,
    pub floor_us: u64,
    pub not_after_ms: ServerMs,
    pub label: &'a str,
    /// `None` makes one attempt without a queue entry.
    pub entry: Option<&'a QueueEntry>,
    /// How far the seed of a counter is ahead of the server's time, in microseconds.
    pub lead_us: u64,
    pub kind: Kind,
    pub purpose: Purpose,
    pub earlier: &'a [QueueEntry],
    /// A caller that is not in the queue yet, and finds this many waiters, is refused.
    pub max_queue: Option<u32>,
}

/// What an acquire is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A new lock.
    Acquire,
    /// A holder of the exclusive lock becomes a reader. Nothing is written unless the caller holds the key.
    Downgrade,
    /// The caller takes the exclusive lock over from this owner id. Nothing is written unless that owner holds the key.
    Exchange(OwnerId),
}

/// The arguments of a release or a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseCommand<'a> {
    pub owner_id: OwnerId,
    pub floor_us: u64,
    pub grace_ms: u64,
    /// How long a key that the caller owns stays locked after the release, without an owner.
    pub min_hold_ms: u64,
    /// The work has succeeded, and a key that the caller owns stays locked for this long since its grant, without an
    /// owner. 0 for work that hasn't, and where nothing is asked for.
    pub done_ms: u64,
    /// As in [`AcquireCommand`].
    pub lead_us: u64,
    /// The label of the caller. A member of a shared lock has it in its text.
    pub label: &'a str,
    pub kind: Kind,
    pub entries: &'a [QueueEntry],
}

/// The arguments of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewCommand<'a> {
    pub owner_id: OwnerId,
    pub ttl_ms: u64,
    /// As in [`ReleaseCommand`].
    pub label: &'a str,
    pub kind: Kind,
}

/// The holder of the key, as a reply describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawHolder {
    /// `None` means a key without an expiry.
    pub remaining_ms: Option<u64>,
    /// The value of the key. Empty while the key is free for foreign clients.
    pub value: String,
}

/// The reply to an acquire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AcquireReply {
    Late,
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    Queued {
        rank: u64,
        holder: RawHolder,
    },
    /// The caller is refused, because this many others wait. It has no entry.
    Full {
        rank: u64,
        holder: RawHolder,
    },
    Busy {
        holder: RawHolder,
    },
    /// The call scanned as many entries as one call may, and others stand behind them: repeat it at once.
    More,
    /// A downgrade found that the caller does not hold the key, or an exchange that the earlier owner does not.
    NotOwner,
    Foreign {
        found: String,
    },
}

/// The reply to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReleaseReply {
    pub verdict: Verdict,
    /// The call scanned as many entries as one call may, and others stand behind them: repeat the release, so
    /// that a living waiter behind them gets the lock.
    pub more: bool,
}

/// The outcome of a release for the caller's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Free,
    HandedOver,
    NotOwner,
}

/// The reply to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RenewReply {
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    NotOwner,
}

/// The server's time, and whether a channel has a subscriber.
pub struct Env<'a> {
    pub now_us: u64,
    pub has_subscriber: &'a dyn Fn(&str) -> bool,
}

impl Env<'_> {
    pub fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }
}
