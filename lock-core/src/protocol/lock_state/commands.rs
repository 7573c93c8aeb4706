//! The commands of the lock state machine, and its replies.

use crate::protocol::clock::ServerMs;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::QueueEntry;

/// An acquire, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcquireCommand<'a> {
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl_ms: u64,
    pub(crate) floor_us: u64,
    pub(crate) not_after_ms: ServerMs,
    pub(crate) label: &'a str,
    /// Absent to ask once without standing in the queue.
    pub(crate) entry: Option<&'a QueueEntry>,
    /// How far the seed of a counter lies ahead of the server's time, in microseconds.
    pub(crate) lead_us: u64,
    pub(crate) earlier: &'a [QueueEntry],
}

/// A release or a cancel, as it travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseCommand<'a> {
    pub(crate) owner_id: OwnerId,
    pub(crate) floor_us: u64,
    pub(crate) grace_ms: u64,
    /// For how long a lock of the caller's stays locked all the same, owned by nobody.
    pub(crate) min_hold_ms: u64,
    /// As in [`AcquireCommand`].
    pub(crate) lead_us: u64,
    pub(crate) entries: &'a [QueueEntry],
}

/// Who holds the key, as an answer tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawHolder {
    /// `None` is a key without expiry.
    pub(crate) remaining_ms: Option<u64>,
    /// The value of the key; empty while nobody holds it and foreign clients go first.
    pub(crate) value: String,
}

/// The answer to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// The key is free, and the first entries of the queue were all dead: ask again at once.
    More,
    Foreign {
        found: String,
    },
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseReply {
    pub(crate) verdict: Verdict,
    /// The key is free, and the first entries of the queue were all dead: release again, so that
    /// whoever lives behind them gets it.
    pub(crate) more: bool,
}

/// What became of the caller's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Free,
    HandedOver,
    NotOwner,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewReply {
    Held {
        token: FencingToken,
        remaining_ms: u64,
    },
    NotOwner,
}

/// The server's time, and whether anybody listens on a channel.
pub(crate) struct Env<'a> {
    pub(crate) now_us: u64,
    pub(crate) has_subscriber: &'a dyn Fn(&str) -> bool,
}

impl Env<'_> {
    pub(crate) fn now_ms(&self) -> ServerMs {
        ServerMs::from_micros(self.now_us)
    }
}
