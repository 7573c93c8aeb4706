//! The commands of the lock state machine, and their replies.

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
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
    pub(crate) earlier: &'a [QueueEntry],
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
    pub(crate) entries: &'a [QueueEntry],
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
    /// The key is free, and all entries that the call scanned were dead: repeat the call at once.
    More,
    Foreign {
        found: String,
    },
}

/// The reply to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct ReleaseReply {
    pub(crate) verdict: Verdict,
    /// The key is free, and all entries that the call scanned were dead: repeat the release, so that
    /// a living waiter behind them gets the lock.
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
