//! What the modes have in common.

use std::fmt::{Debug, Write};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use lock_core::{BackendErrorKind, LockError, LockGuard, LockManager, LockRequest};
use test_support::{Helper, RedisServer, Reply, eventually_async, helper};
use tests::shut_down;
use tokio::task::JoinHandle;
use tracing::field::{Field, Visit};
use tracing::span;

/// Bound on conditions that say nothing about speed.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// How much later than it has to an error or a loss may come.
pub(crate) const NOTICE: Duration = Duration::from_millis(250);

/// What must happen without anybody's timer: less than the earliest look of a waiter whom nobody
/// tells anything (750 ms), far less than a claim (2 s) or the ttl of a test that uses this.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(600);

/// A ttl that nobody here waits for: what goes before it was taken away.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const NAME: &str = "job";
pub(crate) const KEY: &str = "lock:job";
pub(crate) const QUEUE: &str = "{lock:job}:q";
pub(crate) const COUNTER: &str = "{lock:job}:f";

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    LockManager::connect(url).await.unwrap()
}

pub(crate) async fn connect_with_timeout(url: &str, timeout: Duration) -> LockManager {
    let builder = LockManager::builder().command_timeout(timeout);
    builder.connect(url).await.unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn exists(server: &RedisServer, key: &str) -> bool {
    server.cli(&["EXISTS", key]).integer() == 1
}

/// What the server says is left of a key's life.
pub(crate) fn server_left(server: &RedisServer, key: &str) -> Duration {
    let left = server.cli(&["PTTL", key]).integer();
    Duration::from_millis(u64::try_from(left).expect("the key is there and expires"))
}

/// What is left beside the fencing counters, which live for five minutes.
pub(crate) fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let texts = keys.array().iter().map(Reply::text);
    texts
        .filter(|key| !key.ends_with(":f"))
        .map(ToOwned::to_owned)
        .collect()
}

/// Nothing is still to be taken back, and no key is left.
pub(crate) async fn assert_nothing_left(server: &RedisServer, locks: &LockManager) {
    shut_down(locks).await;
    assert_eq!(keys(server), Vec::<String>::new());
}

pub(crate) fn token(held: &LockGuard) -> u64 {
    held.fencing_token().expect("every grant has one").as_u64()
}

/// The kind of a server's trouble, which is never taken for a busy lock.
#[track_caller]
pub(crate) fn trouble<T: Debug>(outcome: Result<T, LockError>) -> BackendErrorKind {
    match outcome {
        Err(LockError::Backend(error)) => error.kind(),
        other => panic!("it should be a server's trouble: {other:?}"),
    }
}

/// A process that holds [`NAME`], or waits for it first.
pub(crate) fn holder(url: &str, ttl: Duration, wait: Duration) -> Helper {
    helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", url)
        .arg("hold")
        .arg(NAME)
        .arg(ttl.as_millis().to_string())
        .arg(wait.as_millis().to_string())
}

pub(crate) type Waiting = JoinHandle<Result<LockGuard, LockError>>;

/// A waiter in a task of its own, as the one of that number in the queue of [`NAME`].
pub(crate) async fn stand_in_line(
    server: &RedisServer,
    request: LockRequest,
    number: i64,
) -> Waiting {
    let waiting = tokio::spawn(request.wait(SOON).acquire());
    eventually_async(SOON, async || {
        server.cli(&["ZCARD", QUEUE]).integer() == number
    })
    .await;
    waiting
}

/// The guard of a waiter that has to have the lock by then.
pub(crate) async fn granted(within: Duration, waiting: Waiting) -> LockGuard {
    let granted = tokio::time::timeout(within, waiting).await;
    let guard = granted.unwrap_or_else(|_| panic!("it took longer than {within:?}"));
    guard.unwrap().unwrap()
}

/// How long this thread was kept from running. A machine that let a test stand still may have let
/// the library stand still as well, so that so much is no delay of its own.
struct Canary {
    looked: Instant,
    stood_still: Duration,
}

impl Canary {
    const TICK: Duration = Duration::from_millis(5);

    fn new() -> Self {
        Self {
            looked: Instant::now(),
            stood_still: Duration::ZERO,
        }
    }

    /// One look at a future, which is over after a tick.
    async fn tick<F: Future + Unpin>(&mut self, future: &mut F) -> Option<F::Output> {
        let outcome = tokio::time::timeout(Self::TICK, future).await.ok();
        let late = self.looked.elapsed().saturating_sub(Self::TICK);
        // Timers count in milliseconds: less is no standing still.
        if late > Self::TICK {
            self.stood_still += late;
        }
        self.looked = Instant::now();
        outcome
    }
}

/// An outcome that may not come later than its limit and the time to notice that.
pub(crate) async fn in_time<T: Debug>(limit: Duration, outcome: impl Future<Output = T>) -> T {
    let asked = Instant::now();
    let mut canary = Canary::new();
    let mut outcome = std::pin::pin!(outcome);
    let outcome = loop {
        if let Some(outcome) = canary.tick(&mut outcome).await {
            break outcome;
        }
    };
    let took = asked.elapsed();
    assert!(
        took <= limit + NOTICE + canary.stood_still,
        "{took:?} instead of {limit:?}: {outcome:?}"
    );
    outcome
}

/// Polls once, and says what came of it.
pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx))).await
}

/// Waits for the loss, which has to be told by the end of the lease, as it was last known here,
/// and the time to notice that, in every way at once.
pub(crate) async fn lost_in_time(held: &LockGuard) {
    let started = Instant::now();
    let mut canary = Canary::new();
    let mut lost = held.lost();
    let mut lease_ends = started + held.remaining();
    loop {
        let told = canary.tick(&mut lost).await.is_some();
        let now = Instant::now();
        let remaining = held.remaining();
        assert!(
            !remaining.is_zero() || held.is_lost(),
            "neither held nor lost"
        );
        if told {
            assert!(held.is_lost(), "told of a loss that is none");
            break;
        }
        if !remaining.is_zero() {
            lease_ends = now + remaining;
        }
        assert!(started.elapsed() < SOON, "it is never lost");
    }
    let late = Instant::now().saturating_duration_since(lease_ends);
    assert!(
        late <= NOTICE + canary.stood_still,
        "told {late:?} after the lease"
    );
}

/// Looks for so long that nothing is lost.
pub(crate) async fn assert_held_for(span: Duration, held: &LockGuard) {
    let until = Instant::now() + span;
    while Instant::now() < until {
        assert!(!held.is_lost());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How often a script set the lock's key, in a recording.
pub(crate) fn grants(recording: &test_support::Recording) -> usize {
    let set = |command: &&test_support::monitor::Command| {
        command.is_from_script() && command.name() == "SET" && command.words[1] == KEY
    };
    recording.all().iter().filter(set).count()
}

/// Collects what the library traces on this thread.
#[derive(Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<String>>);

impl Trace {
    /// Until the guard is dropped.
    pub(crate) fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let trace = Self::default();
        let guard = tracing::subscriber::set_default(trace.clone());
        (trace, guard)
    }

    #[track_caller]
    pub(crate) fn assert_says(&self, words: &str) {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(said.contains(words), "`{words}` is not among:\n{said}");
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl tracing::Subscriber for Trace {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("lock_core")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(said, "{}", line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
