//! A backend under test, and what the contracts do with it.

use std::fmt::{self, Debug, Formatter};
use std::time::Duration;

use lock_core::{Capabilities, Dialect, LockGuard, LockManager, LockManagerBuilder, LockRequest};
use test_support::fixtures::{AT_ONCE, SOON};
use test_support::{RedisServer, eventually_async};
use tests::{Waiter, one_attempt, poll_once};

/// The lock that most contracts are about.
pub(crate) const NAME: &str = "order:42";

/// A wait that no contract exhausts.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A backend under test.
pub(crate) struct Subject {
    pub(crate) first: LockManager,
    pub(crate) second: LockManager,
    /// Absent where a waiter stands in the queue as soon as it was polled.
    server: Option<RedisServer>,
    /// Whether the lease of a lock that is renewed has an end to speak of.
    pub(crate) tells_remaining: bool,
    pub(crate) able: Capabilities,
}

impl Subject {
    /// The backend without a server. A second manager would have other locks, so the two are
    /// clones of one.
    #[expect(
        clippy::unused_async,
        reason = "like those of backends that have to connect"
    )]
    pub(crate) async fn in_memory() -> Self {
        let locks = builder("first").in_memory();
        Self {
            first: locks.clone(),
            second: locks,
            server: None,
            tells_remaining: false,
            able: Dialect::Native.capabilities(),
        }
    }

    /// Two managers on one server, with connections and a background worker each, as in two processes.
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
        Self {
            able: dialect.capabilities(),
            ..Self::on(server, first, second)
        }
    }

    /// One manager on a server, and a clone of it.
    pub(crate) async fn redis_with_one_manager() -> Self {
        let server = RedisServer::start();
        let locks = connect(builder("first"), &server).await;
        Self::on(server, locks.clone(), locks)
    }

    fn on(server: RedisServer, first: LockManager, second: LockManager) -> Self {
        Self {
            first,
            second,
            server: Some(server),
            tells_remaining: true,
            able: Dialect::Native.capabilities(),
        }
    }

    /// The managers by turns.
    pub(crate) fn manager(&self, turn: usize) -> &LockManager {
        if turn.is_multiple_of(2) {
            &self.first
        } else {
            &self.second
        }
    }

    /// Whether so many wait for [`NAME`]; always where they stand in no queue to be seen in.
    pub(crate) fn has_waiters(&self, count: usize) -> bool {
        let Some(server) = self.server.as_ref().filter(|_| self.able.fifo) else {
            return true;
        };
        let waiting = server.cli(&["ZCARD", &format!("{{lock:{NAME}}}:q")]);
        usize::try_from(waiting.integer()) == Ok(count)
    }

    /// A lease to see the end of: long enough not to end while a busy machine turns to something
    /// else between two lines of a contract, short enough to wait for.
    pub(crate) fn ttl(&self) -> Duration {
        self.able.min_ttl.max(Duration::from_millis(300))
    }

    /// The ttl of what is to be dropped: so long that only giving it back is fast enough, unless
    /// the ttl is what ends it.
    pub(crate) fn ttl_to_drop(&self) -> Duration {
        if self.able.cancels_unconfirmed {
            Duration::from_secs(30)
        } else {
            self.ttl()
        }
    }

    /// How long a lock of [`Self::ttl_to_drop`] may be taken after its future was dropped.
    pub(crate) fn patience(&self) -> Duration {
        if self.able.cancels_unconfirmed {
            AT_ONCE
        } else {
            self.ttl_to_drop() + AT_ONCE
        }
    }

    /// Has a request for [`NAME`] wait in a task of its own, and returns when it stands in the
    /// queue, as the one of that number.
    pub(crate) async fn start_waiter(&self, request: LockRequest, number: usize) -> Waiter {
        let mut acquiring = Box::pin(request.acquire());
        let first = poll_once(&mut acquiring).await;
        assert!(first.is_pending(), "it should wait: {first:?}");
        let waiting = tokio::spawn(acquiring);
        eventually_async(SOON, async || self.has_waiters(number)).await;
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
    connected.expect("the server has just started")
}

/// The output of a future that has to be there by then.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
    tokio::time::timeout(limit, future)
        .await
        .unwrap_or_else(|_| panic!("it took longer than {limit:?}"))
}

/// The guard of a waiter that has to have the lock at once.
pub(crate) async fn granted_at_once(waiter: Waiter) -> LockGuard {
    granted_within(AT_ONCE, waiter).await
}

pub(crate) async fn granted_within(limit: Duration, waiter: Waiter) -> LockGuard {
    within(limit, waiter)
        .await
        .expect("acquiring does not panic")
        .expect("the lock was free")
}

/// Gets the lock, which must be free by then.
pub(crate) async fn free_at_once(locks: &LockManager) -> LockGuard {
    free_within(AT_ONCE, locks).await
}

pub(crate) async fn free_within(limit: Duration, locks: &LockManager) -> LockGuard {
    let mut got = None;
    eventually_async(limit, async || {
        got = locks.lock(NAME).try_acquire().await.unwrap();
        got.is_some()
    })
    .await;
    got.expect("the condition holds")
}
