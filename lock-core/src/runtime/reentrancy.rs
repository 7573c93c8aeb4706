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
use lock_protocol::kind::Kind;

/// A lock whose body this thread is polling.
struct Frame {
    /// The manager, since the same name on two servers is two locks.
    manager_id: usize,
    key: Arc<str>,
    kind: Kind,
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
pub(crate) fn enter(manager_id: usize, key: Arc<str>, kind: Kind) -> BodyScope {
    let task = tokio::task::try_id();
    FRAMES.with_borrow_mut(|frames| {
        frames.push(Frame {
            manager_id,
            key,
            kind,
            task,
        });
    });
    BodyScope {
        span: None,
        _thread: PhantomData,
    }
}

/// Returns whether the calling task would wait for itself: it is inside the body of a lock with this key, and
/// cannot have a lock of this kind beside it.
///
/// A reader cannot read again: a writer that waits between the two would stop both.
pub(crate) fn would_deadlock(manager_id: usize, key: &str, kind: Kind) -> bool {
    FRAMES.with_borrow(|frames| {
        // The task id is read last: usually there are no frames at all.
        let entered = frames.iter().filter(|frame| {
            frame.manager_id == manager_id
                && &*frame.key == key
                && frame.task == tokio::task::try_id()
        });
        let Kind::Permits { of, weight } = kind else {
            return entered.count() > 0;
        };
        let mut left = of;
        for frame in entered {
            let taken = match frame.kind {
                Kind::Permits { of: same, weight } if same == of => weight,
                // Holders of another kind are never there together with these permits.
                _ => of,
            };
            left = left.saturating_sub(taken);
        }
        left < weight
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_leaves_the_scope() {
        let key: Arc<str> = "a".into();
        let is_entered = |manager_id, key| would_deadlock(manager_id, key, Kind::Exclusive);
        let entered = enter(1, Arc::clone(&key), Kind::Exclusive);
        assert!(is_entered(1, "a"));
        assert!(!is_entered(1, "b"));
        assert!(!is_entered(2, "a"));
        drop(entered);
        assert!(!is_entered(1, "a"));
        let panicked = std::panic::catch_unwind(|| {
            let _entered = enter(1, key, Kind::Exclusive);
            panic!("body");
        });
        assert!(panicked.is_err());
        assert!(!is_entered(1, "a"));
    }

    #[tokio::test]
    async fn other_task_within_the_poll_is_not_in_the_scope() {
        let is_entered = |manager_id, key| would_deadlock(manager_id, key, Kind::Exclusive);
        let entered = enter(1, "a".into(), Kind::Exclusive);
        let other = std::thread::scope(|scope| scope.spawn(|| is_entered(1, "a")).join());
        assert!(!other.unwrap());
        drop(entered);
        let local = tokio::task::spawn(async {
            let _entered = enter(7, "k".into(), Kind::Exclusive);
            would_deadlock(7, "k", Kind::Exclusive)
        });
        assert!(local.await.unwrap());
    }

    #[test]
    fn only_permits_that_are_left_can_be_acquired_inside() {
        let permits = |of, weight| Kind::Permits { of, weight };
        let inside = |held: &[Kind], kind| {
            let enter = |kind: &Kind| enter(1, "a".into(), *kind);
            let _entered: Vec<_> = held.iter().map(enter).collect();
            would_deadlock(1, "a", kind)
        };
        for kind in [Kind::Exclusive, Kind::Read, permits(4, 1)] {
            assert!(!inside(&[], kind));
            assert!(inside(&[Kind::Exclusive], kind));
            assert!(inside(&[Kind::Read], kind));
        }
        assert!(inside(&[permits(4, 1)], Kind::Read));
        assert!(inside(&[permits(4, 1)], permits(8, 1)));
        assert!(!inside(&[permits(4, 1)], permits(4, 3)));
        assert!(inside(&[permits(4, 1), permits(4, 1)], permits(4, 3)));
        assert!(inside(&[permits(1, 1)], permits(1, 1)));
    }
}
