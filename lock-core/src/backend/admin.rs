//! The operations of operators on the locks of a backend.

use std::time::Duration;

use super::Boxed;
use crate::error::LockError;
use lock_protocol::dialect::Dialect;
pub(crate) use lock_protocol::inspection::InspectDetail;
use lock_protocol::inspection::{InspectReply, ListCursor, ReadTime};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lock_state::ForceReply;
pub(crate) use lock_protocol::lock_state::{ForceRequest, ForeignValues};

/// Reads locks, and takes them from their holders. Each operation is for the locks of any dialect.
pub(crate) trait AdminBackend: Send + Sync + 'static {
    /// Reads a lock and its first waiters, and changes nothing.
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>>;

    /// Takes the lock from its holder.
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
