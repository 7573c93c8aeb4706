//! What is asked of the open connections to a server.

use std::net::IpAddr;
use std::time::Duration;

use crate::store::Boxed;

/// A connection that tells of its server.
pub(super) trait Witness: Send + Sync {
    fn is_open(&self) -> bool;

    /// Returns the run id of the process to which it leads.
    fn run_id(&self) -> u64;

    /// Returns the address to which it leads; `None` for a Unix socket.
    fn peer(&self) -> Option<IpAddr>;

    /// Asks the server whether it has become a replica, and takes a server that doesn't tell its role for a primary.
    /// Returns `None` if no reply comes in time.
    fn is_replica(&self, limit: Duration) -> Boxed<'_, Option<bool>>;
}
