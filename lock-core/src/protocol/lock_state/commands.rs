//! The commands of the lock state machine, and their replies.

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::kind::Kind;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::QueueEntry;

/// The arguments of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcquireCommand<'a> {
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl_ms: u64,
    pub(crate) floor_us: u64,
    pub(crate) not_after_ms: ServerMs,
    pub(crate) label: &'a str,
    /// `None` makes one attempt without a queue entry.
    pub(crate) entry: Option<&'a QueueEntry>,
    /// How far the seed of a counter is ahead of the server's time, in microseconds.
    pub(crate) lead_us: u64,
    pub(crate) kind: Kind,
    pub(crate) purpose: Purpose,
    pub(crate) earlier: &'a [QueueEntry],
}

/// What an acquire is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// A new lock.
    Acquire,
    /// A holder of the exclusive lock becomes a reader. Nothing is written unless the caller holds the key.
    Downgrade,
}

/// The arguments of a release or a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseCommand<'a> {
    pub(crate) owner_id: OwnerId,
    pub(crate) floor_us: u64,
    pub(crate) grace_ms: u64,
    /// How long a key that the caller owns stays locked after the release, without an owner.
    pub(crate) min_hold_ms: u64,
    /// As in [`AcquireCommand`].
    pub(crate) lead_us: u64,
    /// The label of the caller. A member of a shared lock has it in its text.
    pub(crate) label: &'a str,
    pub(crate) kind: Kind,
    pub(crate) entries: &'a [QueueEntry],
}

/// The arguments of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RenewCommand<'a> {
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl_ms: u64,
    /// As in [`ReleaseCommand`].
    pub(crate) label: &'a str,
    pub(crate) kind: Kind,
}

/// The holder of the key, as a reply describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct RawHolder {
    /// `None` means a key without an expiry.
    pub(crate) remaining_ms: Option<u64>,
    /// The value of the key. Empty while the key is free for foreign clients.
    pub(crate) value: String,
}

/// The reply to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum AcquireReply {
    Late,
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    Queued {
        rank: u64,
        holder: RawHolder,
    },
    Busy {
        holder: RawHolder,
    },
    /// The call scanned as many entries as one call may, and others stand behind them: repeat it at once.
    More,
    /// A downgrade found that the caller does not hold the key.
    NotOwner,
    Foreign {
        found: String,
    },
}

/// The reply to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct ReleaseReply {
    pub(crate) verdict: Verdict,
    /// The call scanned as many entries as one call may, and others stand behind them: repeat the release, so
    /// that a living waiter behind them gets the lock.
    pub(crate) more: bool,
}

/// The outcome of a release for the caller's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Verdict {
    Free,
    HandedOver,
    NotOwner,
}

/// The reply to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum RenewReply {
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    NotOwner,
}

/// The server's time, and whether a channel has a subscriber.
pub(crate) struct Env<'a> {
    pub(crate) now_us: u64,
    pub(crate) has_subscriber: &'a dyn Fn(&str) -> bool,
}

impl Env<'_> {
    pub(crate) fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }
}
