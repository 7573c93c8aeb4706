//! What happens to a lock when its client goes away, on real sockets. The handlers end only when the
//! test lets them, so a lock that becomes free earlier was released because the handler was dropped.

mod actix;
mod axums;
mod grpc;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::LockManager;
use test_support::fixtures::SOON;
use test_support::{RedisServer, eventually_async};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// For how long a handler that runs on must be seen to have its lock. A dropped one releases it within
/// milliseconds.
const RUNS_ON: Duration = Duration::from_millis(400);

/// The work of the handlers, and its manager.
#[derive(Clone)]
struct Work {
    locks: LockManager,
    began: Arc<Semaphore>,
    may_end: Arc<Semaphore>,
    ended: Arc<AtomicUsize>,
}

impl Work {
    fn new(locks: LockManager) -> Self {
        Self {
            locks,
            began: Arc::new(Semaphore::new(0)),
            may_end: Arc::new(Semaphore::new(0)),
            ended: Arc::default(),
        }
    }

    /// Runs in a handler, under the lock.
    async fn run(&self) -> String {
        self.began.add_permits(1);
        let may_end = self.may_end.acquire().await;
        may_end.expect("it is never closed").forget();
        self.ended.fetch_add(1, Ordering::SeqCst);
        "done".to_owned()
    }

    /// Waits until a handler has its lock.
    async fn begun(&self) {
        let begun = timeout(SOON, self.began.acquire()).await;
        let begun = begun.expect("the handler runs");
        begun.expect("it is never closed").forget();
    }

    /// Lets one handler end.
    fn end_one(&self) {
        self.may_end.add_permits(1);
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    async fn is_free(&self, id: &str) -> bool {
        let name = format!("job:{id}");
        let free = self.locks.lock(name).try_acquire().await;
        match free.expect("the server runs") {
            None => false,
            Some(guard) => {
                guard.release().await.expect("it is held");
                true
            }
        }
    }

    /// The handler was dropped: the lock is free, and the work did not end.
    async fn assert_dropped(&self, id: &str) {
        eventually_async(SOON, async || self.is_free(id).await).await;
        assert_eq!(self.ended(), 0, "the handler ended by itself");
    }

    /// The handler runs on with its lock, until the test lets it end.
    async fn assert_runs_on(&self, id: &str) {
        let until = tokio::time::Instant::now() + RUNS_ON;
        while tokio::time::Instant::now() < until {
            assert!(
                !self.is_free(id).await,
                "the lock is free before the handler ended"
            );
        }
        assert_eq!(self.ended(), 0);
        self.end_one();
        eventually_async(SOON, async || self.is_free(id).await).await;
        assert_eq!(self.ended(), 1);
    }
}

/// Runs a test with locks in memory, and with locks on a server.
async fn with_each_backend(test: impl AsyncFn(Work)) {
    test(Work::new(LockManager::in_memory())).await;
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await;
    test(Work::new(locks.expect("it runs"))).await;
}

/// Closes the connection with a reset (RST), as an aborted client does.
fn reset(connection: TcpStream) {
    let lingers = connection.set_zero_linger();
    lingers.expect("it is connected");
    drop(connection);
}
