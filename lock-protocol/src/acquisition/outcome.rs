//! What a store reports to an acquisition, and the classes of its failures.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Moment, ServerMs};
use crate::fencing_token::FencingToken;
use crate::kind::Kind;
use crate::lock_state::RenewReply;
use crate::loss::LossReason;
use crate::owner_id::OwnerId;
use crate::poll_schedule::HolderExpiry;
use crate::wire::{GroupValue, OwnerValue, PlainOwner, is_deadline, tidy_label};

/// The class of a failure: what the state machines do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// There is no connection, or it broke. The server may have executed the command.
    Unreachable,
    /// No reply came in time. The server may have executed the command.
    TimedOut,
    /// The server refused the command for lack of memory. It still executes renewals.
    OutOfMemory,
    /// The server refused the command for another temporary reason.
    Retry,
    /// The server refused the command for a reason that isn't known, such as a limit of a hosting service. It may have
    /// executed a part of it.
    Unknown,
    /// The server refuses until the user's rights change.
    Forbidden,
    /// The key, or one that belongs to it, holds something else.
    ForeignKey,
    /// The command must not be sent again.
    MustNotRepeat,
    /// Another attempt would fail in the same way.
    Fatal,
}

impl FailureClass {
    /// Returns whether the same command may succeed a moment later.
    pub fn is_transient(self) -> bool {
        match self {
            Self::Unreachable
            | Self::TimedOut
            | Self::OutOfMemory
            | Self::Retry
            | Self::Unknown => true,
            Self::Forbidden | Self::ForeignKey | Self::MustNotRepeat | Self::Fatal => false,
        }
    }
}

/// A failure of a store. The state machines keep it for the caller and know only its class.
pub trait Failure {
    fn class(&self) -> FailureClass;
}

/// The outcome of an acquire.
#[derive(Clone, Debug)]
pub enum AcquireOutcome {
    Held {
        /// `None` in dialects without fencing tokens.
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    Queued {
        rank: u64,
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
        /// The interval between polls of a waiter that gets no notifications.
        poll: Option<Duration>,
    },
    /// The caller accepts fewer waiters before it than there are. It has no entry.
    Full {
        rank: u64,
        holder: Option<ObservedHolder>,
    },
    Busy {
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
    },
    /// The lock is free, but more dead waiters are ahead in the queue than the server removes in
    /// one call. The caller sends the acquire again at once.
    More,
    /// The command reached the server after its time limit, and had no effect.
    Late,
    /// The key holds a value of another type.
    Foreign { found: String },
    /// A downgrade found that the caller does not hold the key, or an exchange that the earlier owner does not.
    NotOwner,
    /// An earlier attempt was cancelled, and the cancel may still take effect. The waiter goes on under a new
    /// owner id.
    StartOver,
}

impl AcquireOutcome {
    /// Returns the holder, if the lock is busy.
    pub fn holder_mut(&mut self) -> Option<&mut ObservedHolder> {
        match self {
            Self::Queued { holder, .. } | Self::Full { holder, .. } | Self::Busy { holder, .. } => {
                holder.as_mut()
            }
            Self::Held { .. }
            | Self::More
            | Self::Late
            | Self::Foreign { .. }
            | Self::NotOwner
            | Self::StartOver => None,
        }
    }
}

/// The outcome of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    Held {
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    /// The lock is lost for this reason.
    NotOwner(LossReason),
}

impl RenewOutcome {
    /// Returns the outcome of the reply to a renewal that was sent at `sent`. `found` is the value that a
    /// refused renewal found.
    pub fn from_reply(reply: RenewReply, found: Option<&str>, sent: Moment) -> Self {
        match reply {
            RenewReply::Held {
                token,
                remaining_ms,
            } => Self::Held {
                token: Some(token),
                sent,
                remaining: Duration::from_millis(remaining_ms),
            },
            RenewReply::NotOwner => Self::NotOwner(LossReason::from_value(found)),
        }
    }

    /// Returns the outcome of a renewal to `ttl` that compared the owner.
    pub fn unless_lost(lost: Option<LossReason>, ttl: Duration, sent: Moment) -> Self {
        match lost {
            Some(reason) => Self::NotOwner(reason),
            None => Self::Held {
                token: None,
                sent,
                remaining: ttl,
            },
        }
    }

    /// Changes the reason of a loss.
    pub fn map_loss(self, change: impl FnOnce(LossReason) -> LossReason) -> Self {
        match self {
            Self::NotOwner(reason) => Self::NotOwner(change(reason)),
            held @ Self::Held { .. } => held,
        }
    }

    /// Limits the remaining time of a held lock to `left`.
    pub fn for_at_most(mut self, left: Duration) -> Self {
        if let Self::Held { remaining, .. } = &mut self {
            *remaining = left.min(*remaining);
        }
        self
    }
}

/// The label of a holder whose value has none.
pub const FOREIGN_LABEL: &str = "a client of another library";

/// The holder of a lock, read from the key's value in any dialect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObservedHolder {
    /// `None` for a holder of another library.
    pub owner_id: Option<OwnerId>,
    /// The kind of the lock. The holders of permits have a weight of 1 here.
    pub kind: Kind,
    /// How many readers hold the lock, or how many permits are taken, if the reply says it.
    pub members: Option<u32>,
    /// `None` if the holder has no token, or it is unknown.
    pub token: Option<FencingToken>,
    /// Sanitized, because errors and logs contain it.
    pub label: Arc<str>,
    pub remaining: Option<Duration>,
    /// How long it has held the lock. `None` for a holder of another library.
    pub held_for: Option<Duration>,
    /// Whether it was a guard of this manager. Judged when the reply arrives: at the end of the wait,
    /// the guard may have ended.
    pub is_own: bool,
}

impl ObservedHolder {
    /// Reads the holder from the key's value at this server time. Returns `None` for an empty value: no
    /// holder writes one.
    pub fn from_value(
        value: &str,
        remaining: Option<Duration>,
        server_ms: Option<ServerMs>,
    ) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        let mut held_for = None;
        let mut since = |since_ms: ServerMs| {
            let held_ms = server_ms.map(|now| now.as_u64().saturating_sub(since_ms.as_u64()));
            held_for = held_ms.map(Duration::from_millis);
        };
        let (mut kind, mut members) = (Kind::Exclusive, None);
        let group = GroupValue::parse_counted(value)
            .map(|(group, count)| (group, Some(count)))
            .or_else(|| Some((GroupValue::parse(value)?, None)));
        let (owner_id, token, label) = if let Some(owner) = OwnerValue::parse(value) {
            since(owner.since_ms);
            (Some(owner.owner_id), Some(owner.token), owner.label)
        } else if let Some((group, count)) = group {
            since(group.since_ms);
            (kind, members) = (group.group.kind(), count);
            (None, Some(group.token), group.label)
        } else if let Some(owner) = PlainOwner::parse(value) {
            (Some(owner.owner_id), None, owner.label)
        } else if is_deadline(value) {
            (None, None, value.to_owned())
        } else {
            // The value may be all that its holder needs for a release, so nobody else gets to see it.
            (None, None, FOREIGN_LABEL.to_owned())
        };
        Some(Self {
            owner_id,
            kind,
            members,
            token,
            label: tidy_label(&label).into(),
            remaining,
            held_for,
            is_own: false,
        })
    }

    /// Returns the holder as it is after this time, if it neither released nor renewed the lock since.
    pub(crate) fn aged(mut self, time: Duration) -> Self {
        self.held_for = self.held_for.map(|held| held.saturating_add(time));
        self.remaining = self.remaining.map(|left| left.saturating_sub(time));
        self
    }

    /// Returns whether the lock has no holder: a `min_hold` keeps it, or an operator revoked it. The label says
    /// which.
    pub fn is_without_owner(&self) -> bool {
        self.owner_id == Some(OwnerId::nil())
    }

    /// Returns whether the work that the lock protects is done for a period. The lock has no holder then, and the
    /// label names the last one.
    pub fn is_done(&self) -> bool {
        self.owner_id == Some(OwnerId::done()) && self.token.is_some()
    }

    /// Returns whether this library wrote the lock.
    pub fn is_of_this_library(&self) -> bool {
        self.owner_id.is_some() || self.kind.is_shared()
    }
}
