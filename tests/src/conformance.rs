//! What every backend has to keep, written once and run against each.
//!
//! A contract is a function of a [`Subject`]: two managers on the same locks, made by whatever
//! backend is under test. [`conformance!`](crate::conformance!) runs all of them; a new backend is
//! one more line in `tests/conformance.rs`. Where a dialect does not claim what a contract is about,
//! the contract checks that it says so, and what is left of it: [`Capabilities`] decides.

use std::fmt::{self, Debug, Formatter};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use lock_core::{
    Capabilities, Dialect, LockError, LockGuard, LockManager, LockManagerBuilder, LockRequest,
};
use tokio::task::JoinHandle;

use crate::server::RedisServer;
use crate::wait::eventually_async;

mod holding;
mod load;
mod losing;
mod waiting;

pub use holding::*;
pub use load::*;
pub use losing::*;
pub use waiting::*;

/// The lock that most contracts are about.
const NAME: &str = "order:42";

/// A wait that no contract exhausts.
const WAIT: Duration = Duration::from_secs(20);

/// What must happen without anybody's timer: less than the earliest look of a waiter whom nobody
/// tells anything (750 ms), far less than a claim (2 s) or the default ttl (30 s), and enough for
/// a busy machine.
const AT_ONCE: Duration = Duration::from_millis(600);

/// Bound on conditions that say nothing about speed.
const SOON: Duration = Duration::from_secs(10);

/// Runs every contract against a backend, each as a test of its own:
/// `conformance!(memory, Subject::in_memory());`.
#[macro_export]
macro_rules! conformance {
    ($backend:ident, $subject:expr) => {
        $crate::conformance!(@each $backend, $subject;
            a_held_lock_is_nobody_else_s
            one_who_tries_is_told_who_holds_it
            a_released_lock_is_free
            a_dropped_guard_frees_at_once
            a_panic_in_the_body_frees_at_once
            a_dropped_body_frees_at_once
            a_release_dropped_halfway_releases_once
            shutdown_waits_for_dropped_guards
            the_result_of_the_body_is_returned_as_it_is
            a_body_that_asks_for_its_own_lock_is_told
            a_watch_works_in_other_tasks
            futures_can_be_spawned
            unusual_names_are_locks_of_their_own
            one_who_waits_gets_it
            the_wait_ends_in_time_and_names_the_holder
            those_who_wait_are_served_in_order
            one_who_tries_does_not_overtake_those_who_wait
            a_waiter_that_leaves_is_passed_over
            a_waiter_that_leaves_at_the_grant_hands_on
            a_dropped_try_leaves_nothing
            a_lease_ends
            a_lease_is_extended_by_renewing
            a_living_guard_is_kept_beyond_its_ttl
            the_loss_is_told_in_every_way
            the_body_is_dropped_when_the_lock_is_lost
            a_hold_has_its_limit
            a_lost_guard_cannot_release_the_next_holder
            tokens_grow
            a_thousand_locks_at_once
            no_update_is_lost
        );
    };
    (@each $backend:ident, $subject:expr; $($contract:ident)+) => {
        mod $backend {
            #[allow(unused_imports, reason = "the subject may be written with a path")]
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $contract() {
                    $crate::conformance::$contract(&$subject.await).await;
                }
            )+

            /// The names of the contracts that ran.
            #[allow(dead_code, reason = "of interest for one backend only")]
            pub(super) const CONTRACTS: &[&str] = &[$(stringify!($contract)),+];
        }
    };
}

/// A backend under test.
pub struct Subject {
    first: LockManager,
    second: LockManager,
    /// Absent where a waiter stands in the queue as soon as it was polled.
    server: Option<RedisServer>,
    /// Whether the lease of a lock that is renewed has an end to speak of.
    tells_remaining: bool,
    able: Capabilities,
}

impl Subject {
    /// The backend without a server. A second manager would have other locks, so the two are
    /// clones of one.
    #[expect(
        clippy::unused_async,
        reason = "like those of backends that have to connect"
    )]
    pub async fn in_memory() -> Self {
        let locks = builder("first").in_memory();
        Self {
            first: locks.clone(),
            second: locks,
            server: None,
            tells_remaining: false,
            able: Dialect::Native.capabilities(),
        }
    }

    /// Two managers on one server, with connections and a keeper each, as in two processes.
    pub async fn redis() -> Self {
        let server = RedisServer::start();
        let first = connect(builder("first"), &server).await;
        let second = connect(builder("second"), &server).await;
        Self::on(server, first, second)
    }

    /// Two managers on one server, in another dialect.
    pub async fn redis_in(dialect: Dialect) -> Self {
        let server = RedisServer::start();
        let first = connect(builder("first").dialect(dialect), &server).await;
        let second = connect(builder("second").dialect(dialect), &server).await;
        Self {
            able: dialect.capabilities(),
            ..Self::on(server, first, second)
        }
    }

    /// One manager on a server, and a clone of it.
    pub async fn redis_with_one_manager() -> Self {
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
    fn manager(&self, turn: usize) -> &LockManager {
        if turn.is_multiple_of(2) {
            &self.first
        } else {
            &self.second
        }
    }

    /// Whether so many wait for [`NAME`]; always where they stand in no queue to be seen in.
    fn has_waiters(&self, count: usize) -> bool {
        let Some(server) = self.server.as_ref().filter(|_| self.able.fifo) else {
            return true;
        };
        let waiting = server.cli(&["ZCARD", &format!("{{lock:{NAME}}}:q")]);
        usize::try_from(waiting.integer()) == Ok(count)
    }

    /// A lease to see the end of: long enough not to end while a busy machine turns to something
    /// else between two lines of a contract, short enough to wait for.
    fn ttl(&self) -> Duration {
        self.able.min_ttl.max(Duration::from_millis(300))
    }

    /// The ttl of what is to be dropped: so long that only giving it back is fast enough, unless
    /// the ttl is what ends it.
    fn ttl_to_drop(&self) -> Duration {
        if self.able.takes_back {
            Duration::from_secs(30)
        } else {
            self.ttl()
        }
    }

    /// How long a lock of [`Self::ttl_to_drop`] may be taken after its future was dropped.
    fn patience(&self) -> Duration {
        if self.able.takes_back {
            AT_ONCE
        } else {
            self.ttl_to_drop() + AT_ONCE
        }
    }

    /// Has a request for [`NAME`] wait in a task of its own, and returns when it stands in the
    /// queue, as the one of that number.
    async fn stand_in_line(&self, request: LockRequest, number: usize) -> Waiting {
        let mut acquiring = Box::pin(request.acquire());
        let first = poll_once(acquiring.as_mut()).await;
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

/// A waiter in a task of its own.
type Waiting = JoinHandle<Result<LockGuard, LockError>>;

fn builder(label: &str) -> LockManagerBuilder {
    LockManager::builder().label(label)
}

async fn connect(builder: LockManagerBuilder, server: &RedisServer) -> LockManager {
    let connected = builder.connect(&server.url()).await;
    connected.expect("the server has just started")
}

async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// The output of a future that has to be there by then.
async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
    tokio::time::timeout(limit, future)
        .await
        .unwrap_or_else(|_| panic!("it took longer than {limit:?}"))
}

/// The guard of a waiter that has to have the lock at once.
async fn granted_at_once(waiting: Waiting) -> LockGuard {
    granted_within(AT_ONCE, waiting).await
}

async fn granted_within(limit: Duration, waiting: Waiting) -> LockGuard {
    within(limit, waiting)
        .await
        .expect("acquiring does not panic")
        .expect("the lock was free")
}

/// Gets the lock, which has to be free by then without anybody's help.
async fn free_at_once(locks: &LockManager) -> LockGuard {
    free_within(AT_ONCE, locks).await
}

async fn free_within(limit: Duration, locks: &LockManager) -> LockGuard {
    let mut got = None;
    eventually_async(limit, async || {
        got = locks.lock(NAME).try_acquire().await.unwrap();
        got.is_some()
    })
    .await;
    got.expect("the condition holds")
}
