//! The operations of operators on the locks of a backend.

use std::time::Duration;

use super::Boxed;
use crate::error::LockError;
use lock_protocol::dialect::Dialect;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::inspection::{InspectReply, ListCursor, ReadTime, SeenKey};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lock_state::{ForceMode, ForceReply};

/// Reads locks, and takes them from their holders. Each operation is for the locks of any dialect.
pub(crate) trait AdminBackend: Send + Sync + 'static {
    /// Reads a lock and its first waiters, and changes nothing.
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>>;

    /// Takes the lock from its holder. Takes at most `limit`, and twice as long for a foreign value.
    fn force_release<'a>(
        &'a self,
        request: &'a ForceRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<(ReadTime, ForceReply), LockError>>;

    /// Lists locks. Each command takes at most `limit`.
    fn list<'a>(
        &'a self,
        request: &'a ListRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ListReply, LockError>>;
}

/// What an inspection reads of a foreign value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InspectDetail {
    /// Its type, and the beginning of a string. This costs the same for each value.
    Short,
    /// Also the digest of a hash, for a release that compares it. The server reads the whole hash.
    Digest,
}

/// What an operator's release does.
#[derive(Clone, Debug)]
pub(crate) struct ForceRequest {
    pub(crate) key: LockKey,
    pub(crate) mode: ForceMode,
    /// The label of a revoked key.
    pub(crate) label: String,
    /// The token that the lock must have; `None` for any.
    pub(crate) token: Option<FencingToken>,
    /// What the key must hold; `None` for anything.
    pub(crate) seen: Option<SeenKey>,
    pub(crate) foreign: ForeignValues,
    /// The longest lease of a revoked key, where locks may have an endless one.
    pub(crate) longest: Duration,
}

/// What an operator's release does with the value of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignValues {
    Keep,
    Remove,
}

/// Which locks to list.
#[derive(Clone, Debug)]
pub(crate) struct ListRequest {
    pub(crate) prefix: String,
    pub(crate) dialect: Dialect,
    /// A glob of names.
    pub(crate) pattern: String,
    pub(crate) limit: usize,
    pub(crate) after: Option<ListCursor>,
}

/// A part of a list.
#[derive(Debug)]
pub(crate) struct ListReply {
    pub(crate) locks: Vec<ListedLock>,
    /// Where the next part begins; `None` at the end.
    pub(crate) next: Option<ListCursor>,
    /// About how many keys the backend looked at.
    pub(crate) scanned: u64,
}

/// One lock of a list.
#[derive(Debug)]
pub(crate) struct ListedLock {
    pub(crate) name: LockName,
    pub(crate) key: LockKey,
    /// Without the entries of the queue.
    pub(crate) found: InspectReply,
}
