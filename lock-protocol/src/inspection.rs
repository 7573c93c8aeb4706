//! What a reader of a lock finds: the content of its key, and its queue; and what a scan of many locks asks and finds.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::ServerMs;
use crate::dialect::Dialect;
use crate::key::{LockKey, LockName};
use crate::lock_state::RawHolder;

/// The most waiters that one inspection returns.
pub const INSPECTED_WAITERS: usize = 100;

/// The most members of a shared lock that one inspection returns. A holder of several permits has as many
/// members, at most 256.
pub const INSPECTED_MEMBERS: usize = 512;

/// What an inspection reads of a foreign value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InspectDetail {
    /// Its type, and the beginning of a string. This costs the same for each value.
    Short,
    /// Also the digest of a hash, for a release that compares it. The server reads the whole hash.
    Digest,
}

/// When a store read a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadTime {
    /// On the clock by which the store counts leases.
    pub server_ms: ServerMs,
    pub system: SystemTime,
}

impl ReadTime {
    /// The time of a server, which counts from the epoch.
    pub fn of_server(server_us: u64) -> Self {
        let since_epoch = Duration::from_micros(server_us);
        let system = SystemTime::UNIX_EPOCH.checked_add(since_epoch);
        Self {
            server_ms: ServerMs::from_micros(server_us),
            system: system.unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

/// The longest value that a script returns and compares, in bytes.
pub(crate) const LONGEST_VALUE: usize = 200;

/// The content of a lock's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyContent {
    Free,
    /// A string: a lock, or a value that another client wrote.
    Text(FoundText),
    /// A value that is not a string.
    OtherType {
        /// Its Redis type.
        kind: String,
        /// Identifies the value; empty where it is not known.
        digest: String,
    },
}

/// The string in a lock's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundText {
    pub holder: RawHolder,
    /// The first bytes of the value. Another client may write a value that is not text.
    pub bytes: Vec<u8>,
}

impl FoundText {
    /// Takes a value of which some bytes more may be known than the scripts return.
    pub fn new(remaining_ms: Option<u64>, mut bytes: Vec<u8>) -> Self {
        bytes.truncate(LONGEST_VALUE);
        let value = String::from_utf8_lossy(&bytes).into_owned();
        Self {
            holder: RawHolder {
                remaining_ms,
                value,
            },
            bytes,
        }
    }
}

/// A member of a shared lock: one reader, or one permit of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMember {
    /// `<owner id> <number> <label>`, or the same after a `-`.
    pub text: String,
    /// The rest of its lease. `None` for a lock in memory that lasts as long as its guard.
    pub remaining_ms: Option<u64>,
}

/// The members of a shared lock that are alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenMembers {
    /// How many there are.
    pub total: u64,
    /// Those whose leases end first.
    pub first: Vec<SeenMember>,
}

/// What a reader has seen in a key, for a later command that compares it. The time to the expiry is not
/// a part of it, because each renewal changes it.
#[derive(Clone, PartialEq, Eq)]
pub enum SeenKey {
    Free,
    /// The first bytes of a string.
    Text(Vec<u8>),
    /// A value that is not a string.
    OtherType {
        kind: String,
        digest: String,
    },
}

impl SeenKey {
    pub fn of(content: &KeyContent) -> Self {
        match content {
            KeyContent::Free => Self::Free,
            KeyContent::Text(found) => Self::Text(found.bytes.clone()),
            KeyContent::OtherType { kind, digest } => Self::OtherType {
                kind: kind.clone(),
                digest: digest.clone(),
            },
        }
    }

    /// Returns whether one atomic command may act on a key with this content. A value that is not a string
    /// is compared by its digest in a second command.
    pub(crate) fn admits(&self, content: &KeyContent) -> bool {
        match (self, content) {
            (Self::Free, KeyContent::Free) => true,
            (Self::Text(seen), KeyContent::Text(found)) => *seen == found.bytes,
            (Self::OtherType { kind: seen, .. }, KeyContent::OtherType { kind, .. }) => {
                seen == kind
            }
            _ => false,
        }
    }

    /// Returns whether this is a hash without a digest, so that another one looks the same.
    pub fn is_unidentified(&self) -> bool {
        matches!(self, Self::OtherType { kind, digest } if kind == "hash" && digest.is_empty())
    }

    /// Returns the digest of a value that is not a string, if it is known.
    pub fn digest(&self) -> Option<&str> {
        match self {
            Self::OtherType { digest, .. } if !digest.is_empty() => Some(digest),
            _ => None,
        }
    }
}

/// Without the value: it has the owner id, and a client that knows it can release the lock.
impl fmt::Debug for SeenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "Free",
            Self::Text(_) => "Text(..)",
            Self::OtherType { .. } => "OtherType(..)",
        })
    }
}

/// One lock, as a single read-only command finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectReply {
    pub time: ReadTime,
    pub content: KeyContent,
    /// How many entries the queue has.
    pub total: u64,
    /// The first entries of the queue, in the order of arrival. Another version may have written
    /// them.
    pub entries: Vec<String>,
    /// Those of a shared lock; none for all other contents.
    pub members: SeenMembers,
}

impl InspectReply {
    /// The reply for a lock of which nothing is stored.
    pub fn of_nothing(time: ReadTime) -> Self {
        Self {
            time,
            content: KeyContent::Free,
            total: 0,
            entries: Vec::new(),
            members: SeenMembers::default(),
        }
    }
}

/// Which locks to find, from a place on.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    /// The prefix of the keys.
    pub prefix: Arc<str>,
    /// A glob of names.
    pub pattern: String,
    /// Decides the type of the keys.
    pub dialect: Dialect,
    /// The most locks of the part.
    pub limit: usize,
    /// `None` at the beginning.
    pub at: Option<ScanPlace>,
}

impl ScanRequest {
    /// Returns the same request from another place on.
    #[must_use]
    pub fn from(&self, place: Option<ScanPlace>) -> Self {
        Self {
            prefix: Arc::clone(&self.prefix),
            pattern: self.pattern.clone(),
            dialect: self.dialect,
            limit: self.limit,
            at: place,
        }
    }

    /// Returns whether this part finds names, and doesn't read those that an earlier one has found.
    pub fn finds(&self) -> bool {
        let mut place = self.at.as_ref();
        while let Some(ScanPlace::Server { within, .. }) = place {
            place = within.as_deref();
        }
        !matches!(place, Some(ScanPlace::Cursor { pending, .. }) if !pending.is_empty())
    }

    /// Returns the key of a name that was found; `None` if no lock may have this name, as that of a lock's counter.
    pub fn key(&self, name: &LockName) -> Option<LockKey> {
        let key = LockKey::new(&self.prefix, name).ok()?;
        Some(match self.dialect {
            Dialect::Redisson { .. } => key.in_dialect(self.dialect),
            _ => key,
        })
    }
}

/// A part of what a scan finds.
#[derive(Debug, Default)]
pub struct ScanPart {
    /// A server may find a lock twice.
    pub locks: Vec<ListedLock>,
    /// About how many keys were looked at.
    pub scanned: u64,
    /// Where the next part begins; `None` at the end.
    pub next: Option<ScanPlace>,
}

/// A lock that a scan has found.
#[derive(Clone, Debug)]
pub struct ListedLock {
    pub name: LockName,
    pub key: LockKey,
    /// Without the entries of the queue.
    pub found: InspectReply,
}

/// Where the next part of a scan begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanPlace {
    /// On a server.
    Cursor {
        /// Where the server goes on; `None` when it has returned all keys.
        next: Option<u64>,
        /// The names that it has found, and that were not read.
        pending: Vec<String>,
    },
    /// In memory: the last name.
    After(String),
    /// With several servers: the number of one, and the place on it. The nodes of a cluster are in the order of their
    /// addresses.
    Server {
        index: usize,
        within: Option<Box<ScanPlace>>,
    },
}
