//! Notices a task that asks for a lock that it holds further up.
//!
//! The body of `run` and of the attribute is polled inside a scope that names its lock. A
//! request for the same lock inside that scope, on the same task, would wait for itself. The
//! scope is left at each return of the poll, so what other tasks ask for meanwhile, or other
//! branches of a `join!` around the body, is not concerned. Reentrancy by thread would be
//! wrong here: one thread polls many tasks.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use tokio::task::Id;

/// One lock whose body is being polled on this thread.
struct Frame {
    /// Which manager: names of different servers are different locks.
    manager_id: usize,
    key: Arc<str>,
    /// A poll may itself run other tasks, by `block_on`.
    task: Option<Id>,
}

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// The scope of one poll of a body. Left when it is dropped, also by a panic. It belongs to its
/// thread, so it cannot be sent to another one.
pub(crate) struct BodyScope(PhantomData<*const ()>);

impl Drop for BodyScope {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(Vec::pop);
    }
}

/// Enters the scope of a lock, for one poll of its body.
pub(crate) fn enter(manager_id: usize, key: Arc<str>) -> BodyScope {
    let task = tokio::task::try_id();
    FRAMES.with_borrow_mut(|frames| {
        frames.push(Frame {
            manager_id,
            key,
            task,
        });
    });
    BodyScope(PhantomData)
}

/// Whether the calling task holds that lock further up.
pub(crate) fn is_entered(manager_id: usize, key: &str) -> bool {
    FRAMES.with_borrow(|frames| {
        // Mostly there are none, and then nothing is asked of the runtime.
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
    fn a_scope_is_left_also_by_a_panic() {
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
    async fn another_task_that_runs_within_the_poll_is_not_inside() {
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
