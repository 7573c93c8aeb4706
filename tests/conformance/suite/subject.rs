//! A store under test, and the helpers of the contracts.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::time::Duration;

use lock_core::dialect::{Capabilities, Dialect};
use lock_core::{LockGuard, LockManager, LockManagerBuilder, LockRequest};
use test_support::fixtures::{AT_ONCE, SOON};
use test_support::{RedisServer, completes_within, eventually_async};
use tests::{Waiter, one_attempt, poll_once};

/// The lock that most contracts use.
pub(crate) const NAME: &str = "order:42";

/// A wait that no contract exhausts.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// Long enough that a busy machine does not exceed it between two lines of a contract.
const SHORTEST_TTL: Duration = Duration::from_millis(300);
/// The same where a renewal needs a server and a connection to run too.
const SHORTEST_ON_A_SERVER: Duration = Duration::from_secs(1);

/// A store under test.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each flag is an independent property of the store"
)]
pub(crate) struct Subject {
    pub(crate) first: LockManager,
    pub(crate) second: LockManager,
    /// The servers, which stop when the test ends. None in memory: there a waiter enters the queue at its
    /// first poll.
    servers: Option<Box<dyn Any + Send + Sync>>,
    /// Whether a release notifies waiters. Otherwise they poll.
    pub(crate) notifies: bool,
    /// Whether waiters get the lock in the order of their arrival.
    pub(crate) is_fair: bool,
    /// Whether a release gives the lock to the next waiter.
    pub(crate) hands_over: bool,
    /// Whether `remaining` of a renewed lock counts down a lease.
    pub(crate) remaining_is_finite: bool,
    pub(crate) capabilities: Capabilities,
    /// Whether the value says since when the lock is held, and with which token: as that of a native lock does.
    pub(crate) value_has_token: bool,
    pub(crate) prefix: String,
    /// Longer where many servers share the machine.
    pub(crate) shortest_ttl: Duration,
}

impl Subject {
    /// The store without a server. A second manager would have other locks, so both managers are
    /// clones of one.
    #[expect(
        clippy::unused_async,
        reason = "like those of stores that have to connect"
    )]
    pub(crate) async fn in_memory() -> Self {
        let locks = builder("first").in_memory().unwrap();
        Self {
            first: locks.clone(),
            second: locks,
            servers: None,
            notifies: true,
            is_fair: true,
            hands_over: true,
            remaining_is_finite: false,
            capabilities: Dialect::Native.capabilities(),
            value_has_token: true,
            prefix: "lock:".into(),
            shortest_ttl: SHORTEST_TTL,
        }
    }

    /// Two managers on one server. Each has its own connections and background worker, as in two
    /// processes.
    pub(crate) async fn redis() -> Self {
        let server = RedisServer::start();
        let first = connect(builder("first"), &server).await;
        let second = connect(builder("second"), &server).await;
        Self::on(server, first, second)
    }

    /// Two managers on one server, in another dialect.
    pub(crate) async fn redis_in(dialect: Dialect) -> Self {
        let server = RedisServer::start();
        let first = connect(builder("first").dialect(dialect), &server).await;
        let second = connect(builder("second").dialect(dialect), &server).await;
        let capabilities = dialect.capabilities();
        Self {
            capabilities,
            value_has_token: dialect == Dialect::Native,
            notifies: capabilities.notifies_waiters(),
            is_fair: capabilities.is_fair(),
            hands_over: capabilities.hands_over(),
            ..Self::on(server, first, second)
        }
    }

    /// One manager on a server, and a clone of it.
    pub(crate) async fn redis_with_one_manager() -> Self {
        let server = RedisServer::start();
        let locks = connect(builder("first"), &server).await;
        Self::on(server, locks.clone(), locks)
    }

    /// Two managers on these servers.
    #[allow(dead_code, reason = "the tests of topologies use it")]
    pub(crate) async fn at(
        servers: impl Any + Send + Sync,
        url: &str,
        change: impl Fn(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Self {
        let connect = async |label| {
            let connected = change(builder(label)).connect(url).await;
            connected.expect("the servers run")
        };
        let first = connect("first").await;
        let second = connect("second").await;
        Self::on(servers, first, second)
    }

    fn on(servers: impl Any + Send + Sync, first: LockManager, second: LockManager) -> Self {
        Self {
            first,
            second,
            servers: Some(Box::new(servers)),
            notifies: true,
            is_fair: true,
            hands_over: true,
            remaining_is_finite: true,
            capabilities: Dialect::Native.capabilities(),
            value_has_token: true,
            prefix: "lock:".into(),
            shortest_ttl: SHORTEST_ON_A_SERVER,
        }
    }

    /// Returns the key of the lock with this name.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns whether the locks are on a server.
    pub(crate) fn has_server(&self) -> bool {
        self.servers.is_some()
    }

    /// Returns the managers in turn.
    pub(crate) fn manager(&self, turn: usize) -> &LockManager {
        if turn.is_multiple_of(2) {
            &self.first
        } else {
            &self.second
        }
    }

    /// Returns whether this many waiters are in the queue of [`NAME`]. Returns `true` when there is
    /// no queue to check.
    pub(crate) async fn has_waiters(&self, count: usize) -> bool {
        if !self.has_server() || !self.is_fair {
            return true;
        }
        let seen = self
            .second
            .admin()
            .inspect(NAME)
            .await
            .expect("the server runs");
        usize::try_from(seen.waiters_total) == Ok(count)
    }

    /// A ttl that a contract can wait for. It is long enough that a busy machine does not exceed it
    /// between two lines of a contract.
    pub(crate) fn ttl(&self) -> Duration {
        self.capabilities.min_ttl().max(self.shortest_ttl)
    }

    /// The ttl of a lock that is to be dropped. It is so long that only a release or a cancel frees
    /// the lock in time, unless the dialect leaves the lock to its ttl.
    pub(crate) fn ttl_to_drop(&self) -> Duration {
        if self.capabilities.cancels_unconfirmed() {
            Duration::from_secs(30)
        } else {
            self.ttl()
        }
    }

    /// How long a lock of [`Self::ttl_to_drop`] may be held after its future was dropped.
    pub(crate) fn patience(&self) -> Duration {
        if self.capabilities.cancels_unconfirmed() {
            AT_ONCE
        } else {
            self.ttl_to_drop() + AT_ONCE
        }
    }

    /// Starts a waiter for [`NAME`] in a task of its own. Returns it when the queue has this many
    /// entries.
    pub(crate) async fn start_waiter(&self, request: LockRequest, number: usize) -> Waiter {
        let mut acquiring = Box::pin(request.acquire());
        let first = poll_once(&mut acquiring).await;
        assert!(first.is_pending(), "the request does not wait: {first:?}");
        let waiting = tokio::spawn(acquiring);
        eventually_async(SOON, async || self.has_waiters(number).await).await;
        waiting
    }
}

impl Debug for Subject {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("first", &self.first)
            .finish_non_exhaustive()
    }
}

fn builder(label: &str) -> LockManagerBuilder {
    one_attempt(LockManager::builder()).label(label)
}

async fn connect(builder: LockManagerBuilder, server: &RedisServer) -> LockManager {
    let connected = builder.connect(&server.url()).await;
    connected.expect("the server runs")
}

/// Returns the output of a future that must complete within `limit`.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
    completes_within(limit, future)
        .await
        .unwrap_or_else(|| panic!("the future took longer than {limit:?}"))
}

/// Returns the guard of a waiter that must have the lock at once.
pub(crate) async fn granted_at_once(waiter: Waiter) -> LockGuard {
    granted_within(AT_ONCE, waiter).await
}

pub(crate) async fn granted_within(limit: Duration, waiter: Waiter) -> LockGuard {
    within(limit, waiter)
        .await
        .expect("acquiring does not panic")
        .expect("the waiter gets the lock")
}

/// Acquires the lock, which must be free by then.
pub(crate) async fn free_at_once(locks: &LockManager) -> LockGuard {
    free_within(AT_ONCE, locks).await
}

pub(crate) async fn free_within(limit: Duration, locks: &LockManager) -> LockGuard {
    let mut guard = None;
    eventually_async(limit, async || {
        guard = locks.lock(NAME).try_acquire().await.unwrap();
        guard.is_some()
    })
    .await;
    guard.expect("the condition holds")
}
