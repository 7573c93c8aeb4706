//! The operations of operators on the locks of a backend.

use std::time::Duration;

use super::Boxed;
use crate::error::LockError;
use crate::protocol::inspection::InspectReply;
use crate::protocol::key::LockKey;

/// Reads locks, and takes them from their holders. Each operation is for the locks of any dialect.
pub(crate) trait AdminBackend: Send + Sync + 'static {
    /// Reads a lock and its first waiters, and changes nothing.
    fn inspect<'a>(
        &'a self,
        key: &'a LockKey,
        limit: Duration,
    ) -> Boxed<'a, Result<InspectReply, LockError>>;
}
