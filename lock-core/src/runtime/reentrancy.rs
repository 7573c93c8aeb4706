//! Detects a task that acquires a lock that it already holds.
//!
//! The body of `run` and of the attribute is polled inside a scope that names its lock. An acquire
//! of the same lock inside that scope, on the same task, would wait for itself. Each return of the
//! poll leaves the scope, so it does not affect other tasks, or other branches of a `join!` around
//! the body. Reentrancy by thread would be wrong here: one thread polls many tasks.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use tokio::task::Id;
use tracing::Span;

use crate::runtime::held_lock::HeldLock;
use crate::runtime::records::HoldRecord;
use crate::telemetry::{PanicSource, span};

/// A lock whose body this thread is polling.
struct Frame {
    /// The manager, since the same name on two servers is two locks.
    manager_id: usize,
    key: Arc<str>,
    /// The task, since a poll may run other tasks by `block_on`.
    task: Option<Id>,
}

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// The scope of one poll of a body. Dropping it leaves the scope, even in a panic. It belongs to
/// its thread, so it is not `Send`.
pub(crate) struct BodyScope {
    /// The lock and its span, if a subscriber wants the span.
    span: Option<(Arc<HeldLock>, Arc<Span>)>,
    _thread: PhantomData<*const ()>,
}

impl BodyScope {
    /// Enters the span of the lock, too.
    pub(crate) fn in_span(mut self, held: Arc<HeldLock>) -> Self {
        if let Some(span) = held.record().and_then(HoldRecord::span) {
            held.reporter()
                .guarded(PanicSource::Subscriber, || span::enter(&span));
            self.span = Some((held, span));
        }
        self
    }
}

impl Drop for BodyScope {
    fn drop(&mut self) {
        // In a forked child, the reporter neither leaves the span nor drops it.
        if let Some((held, span)) = self.span.take() {
            held.reporter()
                .guarded(PanicSource::Subscriber, || span::exit(&span));
            held.reporter().drop_span(Some(span));
        }
        FRAMES.with_borrow_mut(Vec::pop);
    }
}

/// Enters the scope of a lock for one poll of its body.
pub(crate) fn enter(manager_id: usize, key: Arc<str>) -> BodyScope {
    let task = tokio::task::try_id();
    FRAMES.with_borrow_mut(|frames| {
        frames.push(Frame {
            manager_id,
            key,
            task,
        });
    });
    BodyScope {
        span: None,
        _thread: PhantomData,
    }
}

/// Returns whether the calling task is inside the body of this lock.
pub(crate) fn is_entered(manager_id: usize, key: &str) -> bool {
    FRAMES.with_borrow(|frames| {
        // The task id is read last: usually there are no frames at all.
        frames.iter().any(|frame| {
            frame.manager_id == manager_id
                && &*frame.key == key
                && frame.task == tokio::task::try_id()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_leaves_the_scope() {
        let key: Arc<str> = "a".into();
        let entered = enter(1, Arc::clone(&key));
        assert!(is_entered(1, "a"));
        assert!(!is_entered(1, "b"));
        assert!(!is_entered(2, "a"));
        drop(entered);
        assert!(!is_entered(1, "a"));
        let panicked = std::panic::catch_unwind(|| {
            let _entered = enter(1, key);
            panic!("body");
        });
        assert!(panicked.is_err());
        assert!(!is_entered(1, "a"));
    }

    #[tokio::test]
    async fn other_task_within_the_poll_is_not_in_the_scope() {
        let entered = enter(1, "a".into());
        let other = std::thread::scope(|scope| scope.spawn(|| is_entered(1, "a")).join());
        assert!(!other.unwrap());
        drop(entered);
        let local = tokio::task::spawn(async {
            let _entered = enter(7, "k".into());
            is_entered(7, "k")
        });
        assert!(local.await.unwrap());
    }
}
