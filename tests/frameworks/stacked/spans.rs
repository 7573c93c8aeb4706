//! `#[tracing::instrument]`: of two attributes, the lower one is the outer one at run time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use async_trait::async_trait;
use lock_core::{LockError, LockManager, distributed_lock};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber};
use tracing::{Event, Metadata, Span, instrument};
use tracing_core::span::Current;

/// A subscriber that only records the current span.
#[derive(Default)]
struct Entered {
    last: AtomicU64,
    spans: Mutex<HashMap<u64, Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    metadata: &'static Metadata<'static>,
    /// The span that was current when this one began.
    parent: Option<u64>,
}

impl Entered {
    /// Returns the names of the current span and of its parents, the outermost first.
    fn path(&self) -> String {
        let spans = self.spans.lock().expect("no panic");
        let mut names = Vec::new();
        let mut next = STACK.with_borrow(|stack| stack.last().copied());
        while let Some(Entry { metadata, parent }) = next.map(|id| spans[&id]) {
            names.push(metadata.name());
            next = parent;
        }
        names.reverse();
        names.join(">")
    }
}

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Subscriber for Entered {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        let mut spans = self.spans.lock().expect("no panic");
        let entry = Entry {
            metadata: span.metadata(),
            parent: STACK.with_borrow(|stack| stack.last().copied()),
        };
        spans.insert(id, entry);
        drop(spans);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        STACK.with_borrow_mut(|stack| stack.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        STACK.with_borrow_mut(|stack| stack.retain(|id| *id != span.into_u64()));
    }

    fn current_span(&self) -> Current {
        let id = STACK.with_borrow(|stack| stack.last().copied());
        id.map_or_else(Current::none, |id| {
            let Entry { metadata, .. } = self.spans.lock().expect("no panic")[&id];
            Current::new(Id::from_u64(id), metadata)
        })
    }
}

/// Installs the subscriber of the process, once. With that of one thread, tracing may switch a span off
/// that another thread creates for the first time without a subscriber.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Entered::default()).expect("the only subscriber");
    });
}

/// Returns the current span and its parents. In `name = ..` these are the spans of the wait.
fn span() -> String {
    let path = tracing::dispatcher::get_default(|dispatch| {
        let entered = dispatch.downcast_ref::<Entered>();
        entered.map(Entered::path).unwrap_or_default()
    });
    if path.is_empty() {
        return "none".into();
    }
    let innermost = path.rsplit('>').next().unwrap_or_default();
    let current = Span::current();
    assert_eq!(current.metadata().map(Metadata::name), Some(innermost));
    path
}

/// The span of the wait and the span of the body.
type Spans = Result<(String, String), LockError>;

#[distributed_lock(name = span(), bind = held, manager = locks)]
#[instrument(skip_all)]
async fn above(locks: &LockManager) -> Spans {
    tokio::task::yield_now().await;
    Ok((held.key().into(), span()))
}

#[instrument(skip_all)]
#[distributed_lock(name = span(), bind = held, manager = locks)]
async fn below(locks: &LockManager) -> Spans {
    tokio::task::yield_now().await;
    Ok((held.key().into(), span()))
}

#[async_trait]
trait Work {
    async fn above(&self, locks: &LockManager, id: u8) -> Spans;
    async fn below(&self, locks: &LockManager, id: u8) -> Spans;
}

struct Worker(u8);

#[async_trait]
impl Work for Worker {
    #[distributed_lock(name = span(), bind = held, manager = locks)]
    #[instrument(skip_all, fields(worker = self.0, id))]
    async fn above(&self, locks: &LockManager, id: u8) -> Spans {
        tokio::task::yield_now().await;
        assert!(id > self.0);
        Ok((held.key().into(), span()))
    }

    #[instrument(skip_all, fields(worker = self.0, id))]
    #[distributed_lock(name = span(), bind = held, manager = locks)]
    async fn below(&self, locks: &LockManager, id: u8) -> Spans {
        tokio::task::yield_now().await;
        assert!(id > self.0);
        Ok((held.key().into(), span()))
    }
}

#[tokio::test]
async fn lower_attribute_is_the_outer_one() {
    install();
    let locks = LockManager::in_memory();
    let spans = |waiting: &str, body: &str| (format!("lock:{waiting}"), body.to_owned());
    // The span contains the wait, and is entered before the name is computed. The library runs the body
    // in its own span `lock.hold`, whose parent is the user's.
    let expected = spans("above", "above>lock.hold");
    assert_eq!(above(&locks).await.expect("free"), expected);
    let work = Worker(1);
    let answer = work.above(&locks, 2).await;
    assert_eq!(answer.expect("free"), expected);
    // The span begins when the lock is held.
    let expected = spans("none", "lock.hold>below");
    assert_eq!(below(&locks).await.expect("free"), expected);
    let answer = work.below(&locks, 2).await;
    assert_eq!(answer.expect("free"), expected);
}

/// Errors and results of an instrumented function are events of its span.
#[async_trait]
trait Report {
    async fn reports_above(&self, locks: &LockManager, id: u8) -> Result<u8, LockError>;
    async fn reports_below(&self, locks: &LockManager, id: u8) -> Result<u8, LockError>;
    async fn reports_both(&self, locks: &LockManager, id: u8) -> Result<u8, LockError>;
}

#[async_trait]
impl Report for Worker {
    #[distributed_lock(name = "report:{id}", manager = locks)]
    #[instrument(skip_all, err)]
    async fn reports_above(&self, locks: &LockManager, id: u8) -> Result<u8, LockError> {
        Ok(self.0 + id)
    }

    #[instrument(skip_all, err)]
    #[distributed_lock(name = "report:{id}", manager = locks)]
    async fn reports_below(&self, locks: &LockManager, id: u8) -> Result<u8, LockError> {
        Ok(self.0 + id)
    }

    #[distributed_lock(name = "report:{id}", manager = locks)]
    #[instrument(skip_all, err, ret)]
    async fn reports_both(&self, locks: &LockManager, id: u8) -> Result<u8, LockError> {
        Ok(self.0 + id)
    }
}

#[distributed_lock(name = "report:{id}", manager = locks)]
#[instrument(skip_all, err, ret)]
async fn reported(locks: &LockManager, id: u8) -> Result<u8, LockError> {
    Ok(id)
}

#[tokio::test]
async fn errors_and_results_are_events_of_the_span() {
    let locks = LockManager::in_memory();
    let worker = Worker(1);
    assert_eq!(worker.reports_above(&locks, 2).await.expect("free"), 3);
    assert_eq!(worker.reports_below(&locks, 2).await.expect("free"), 3);
    assert_eq!(worker.reports_both(&locks, 2).await.expect("free"), 3);
    assert_eq!(reported(&locks, 2).await.expect("free"), 2);
    let _guard = locks.lock("report:2").acquire().await.expect("free");
    assert!(worker.reports_above(&locks, 2).await.is_err());
    assert!(reported(&locks, 2).await.is_err());
}
