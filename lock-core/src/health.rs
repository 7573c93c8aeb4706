//! What a readiness check and a dashboard read about a manager: [`LockManager::health`], [`LockManager::ping`] and
//! [`LockManager::stats`].

use std::time::Duration;

use crate::error::LockError;
use crate::manager::LockManager;
use crate::runtime::probe;

mod stats;

pub use self::stats::LockStats;
pub use crate::runtime::probe::Pong;
pub use crate::store::PollingReason;

/// A snapshot of a manager, made without IO. Returned by [`LockManager::health`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each of them is a fact of its own"
)]
#[non_exhaustive]
pub struct Health {
    /// Whether any connection for lock commands works, as far as the client knows. A manager in memory
    /// needs none, so this is true.
    pub is_connected: bool,
    /// Whether the manager has ever had such a connection. False before the first connection of a manager that
    /// [connects lazily](crate::LockManagerBuilder::connect_lazy); true for a manager in memory. At a quorum, whether it
    /// has had connections to a majority of the servers.
    pub was_connected: bool,
    /// Whether the manager receives notifications for its waiters. It subscribes when the first call
    /// waits. A manager in memory needs no subscription, so this is true.
    pub is_subscribed: bool,
    /// Why waiters poll, as far as the manager knows: it learns of the server when it connects, and of the
    /// subscription when the first call waits. `None` otherwise, and for a manager in memory. In a cluster, it
    /// is the reason of one node.
    pub polling: Option<PollingReason>,
    /// How long ago the manager sent the youngest command whose reply it got. `None` before the first
    /// reply, and for a manager in memory.
    pub last_reply: Option<Duration>,
    /// The number of locks whose guards exist.
    pub held: usize,
    /// The age of the oldest lock that is held. The locks of [leaders](crate::LockRequest::lead) don't count. `None` if no
    /// lock is held. Each call of [`LockManager::health`] looks at all held locks for it.
    pub oldest_held: Option<Duration>,
    /// The number of calls that are acquiring a lock, or wait for it.
    pub waiting: usize,
    /// The number of releases and cancels that are not done yet. It includes releases that the server
    /// refuses, while their lease lasts.
    pub cleanups_open: usize,
    /// Whether the thread runs that renews and releases locks. A manager in memory needs none, so this
    /// is true.
    pub is_worker_alive: bool,
    /// The templates of the [overrides](crate::config::Override) that no call has used for ten minutes. They
    /// are most likely misspelt.
    pub unused_overrides: Vec<String>,
}

impl LockManager {
    /// Finds out whether a lock can be granted now: acquires and releases a lock whose name only this
    /// manager uses.
    ///
    /// A server that is out of memory, read-only or without persistence still replies to `PING`, and
    /// grants no lock. This method fails then. The call takes at most the manager's
    /// [`command_timeout`](crate::LockManagerBuilder::command_timeout). Concurrent calls share one probe,
    /// and calls within a second get the same outcome. So a readiness check may call it for each request.
    /// The first call also subscribes to notifications.
    ///
    /// The name is `ping:` and a random id of the manager, in the manager's dialect. The user of the
    /// server needs the rights to its key.
    ///
    /// Use it for readiness only if most endpoints need locks. Otherwise an outage of the lock server
    /// takes the whole service out. Liveness must not depend on any server.
    ///
    /// # Errors
    /// - [`LockError::Backend`] when the server does not grant the lock, with the reason.
    /// - [`LockError::NoQuorum`] when too few servers of a quorum grant it.
    /// - [`LockError::ShuttingDown`] after [`close`](Self::close) and [`shutdown`](Self::shutdown).
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn ping(&self) -> Result<Pong, LockError> {
        probe::ping(self.inner()).await
    }

    /// Returns what the manager knows about itself, without IO. It needs no runtime. In a forked child it says that
    /// the manager reaches nothing and holds nothing.
    #[must_use]
    pub fn health(&self) -> Health {
        let inner = self.inner();
        if inner.check_process().is_err() {
            return Health {
                is_connected: false,
                was_connected: false,
                is_subscribed: false,
                polling: None,
                last_reply: None,
                held: 0,
                oldest_held: None,
                waiting: 0,
                cleanups_open: 0,
                is_worker_alive: false,
                unused_overrides: Vec::new(),
            };
        }
        let status = inner.store.status();
        let notifies = inner.settings.dialect.capabilities().notifies_waiters();
        Health {
            is_connected: status.connected,
            was_connected: status.was_connected,
            is_subscribed: status.subscribed,
            polling: if notifies {
                status.polling
            } else {
                Some(PollingReason::Dialect)
            },
            last_reply: status.last_reply,
            held: inner.activity.held(),
            oldest_held: inner.oldest_held(),
            waiting: inner.activity.acquiring(),
            cleanups_open: inner.cleanups_open(),
            is_worker_alive: inner.is_worker_alive(),
            unused_overrides: inner.overrides.unused(inner.clock().now()),
        }
    }
}
