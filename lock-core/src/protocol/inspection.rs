//! What a reader of a lock finds: the content of its key, and its queue.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::protocol::acquisition::ObservedHolder;
use crate::protocol::clock::ServerMs;
use crate::protocol::lock_state::RawHolder;

/// The most waiters that one inspection returns.
pub(crate) const INSPECTED_WAITERS: usize = 100;

/// When a backend read a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadTime {
    /// On the clock by which the backend counts leases.
    pub(crate) server_ms: ServerMs,
    pub(crate) system: SystemTime,
}

impl ReadTime {
    /// The time of a server, which counts from the epoch.
    pub(crate) fn of_server(server_us: u64) -> Self {
        let since_epoch = Duration::from_micros(server_us);
        let system = SystemTime::UNIX_EPOCH.checked_add(since_epoch);
        Self {
            server_ms: ServerMs::from_micros(server_us),
            system: system.unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

/// The content of a lock's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyContent {
    Free,
    /// A string: a lock, or a value that another client wrote.
    Text(RawHolder),
    /// A value that is not a string, by its Redis type.
    OtherType(String),
}

/// What a reader has seen in a key, for a later command that compares it. The time to the expiry is not
/// a part of it, because each renewal changes it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum SeenKey {
    Free,
    /// The value of a lock of this library, with or without an owner.
    Owned(String),
    /// The value of another client.
    Foreign(String),
    /// The Redis type of a value that is not a string.
    OtherType(String),
}

impl SeenKey {
    pub(crate) fn of(content: &KeyContent) -> Self {
        match content {
            KeyContent::Free => Self::Free,
            KeyContent::OtherType(found) => Self::OtherType(found.clone()),
            KeyContent::Text(found) => {
                let value = found.value.clone();
                let holder = ObservedHolder::from_value(&value, None, None);
                if holder.is_some_and(|holder| holder.owner_id.is_some()) {
                    Self::Owned(value)
                } else {
                    Self::Foreign(value)
                }
            }
        }
    }

    /// Whether one atomic command may act on a key with this content. It compares the values of locks.
    /// A foreign value may be anything, so its digest is compared in a second command.
    pub(crate) fn admits(&self, content: &KeyContent) -> bool {
        let now = Self::of(content);
        self == &now || self.is_foreign() && now.is_foreign()
    }

    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self, Self::Foreign(_) | Self::OtherType(_))
    }
}

/// Without the value: it has the owner id, and a client that knows it can release the lock.
impl fmt::Debug for SeenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "Free",
            Self::Owned(_) => "Owned(..)",
            Self::Foreign(_) => "Foreign(..)",
            Self::OtherType(_) => "OtherType(..)",
        })
    }
}

/// One lock, as a single read-only command finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InspectReply {
    pub(crate) time: ReadTime,
    pub(crate) content: KeyContent,
    /// How many entries the queue has.
    pub(crate) total: u64,
    /// The first entries of the queue, in the order of arrival. Another version may have written
    /// them.
    pub(crate) entries: Vec<String>,
}

impl InspectReply {
    /// The reply for a lock of which nothing is stored.
    pub(crate) fn of_nothing(time: ReadTime) -> Self {
        Self {
            time,
            content: KeyContent::Free,
            total: 0,
            entries: Vec::new(),
        }
    }
}

/// Where the next part of a list begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListCursor {
    /// On a server: its cursor, and the names that it returned beyond the limit of the last part.
    Scan {
        /// `None` when the server has returned all keys.
        next: Option<u64>,
        pending: Vec<String>,
    },
    /// In memory: the last name.
    After(String),
}
