//! Counts the held locks and the acquires of a manager, and ends the acquires when it closes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::telemetry::Reporter;

/// The held locks and the acquires of a manager, and whether it is closed or shutting down.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    held: AtomicUsize,
    acquiring: AtomicUsize,
    /// Set by a close and by the shutdown.
    is_closing: AtomicBool,
    is_shutting_down: AtomicBool,
    /// Notified at a close, when the shutdown begins, and after that at each end of an acquire or a held lock.
    changed: Notify,
}

impl Activity {
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    pub(crate) fn acquiring(&self) -> usize {
        self.acquiring.load(Ordering::SeqCst)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.is_shutting_down.load(Ordering::SeqCst)
    }

    pub(crate) fn begin_hold(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_hold(&self, reporter: &Reporter) {
        self.held.fetch_sub(1, Ordering::SeqCst);
        self.report_end(reporter);
    }

    pub(crate) fn begin_acquire(&self) {
        self.acquiring.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_acquire(&self, reporter: &Reporter) {
        self.acquiring.fetch_sub(1, Ordering::SeqCst);
        self.report_end(reporter);
    }

    /// The count is written before the flag is read, and [`close`](Self::close) does the opposite: one
    /// of both sees the other.
    fn report_end(&self, reporter: &Reporter) {
        if self.is_closing() {
            reporter.waking(|| self.changed.notify_waiters());
        }
    }

    /// Refuses acquires from now on.
    pub(crate) fn close(&self, reporter: &Reporter) {
        self.is_closing.store(true, Ordering::SeqCst);
        reporter.waking(|| self.changed.notify_waiters());
    }

    /// Begins the shutdown, which also ends the terms of leaders.
    pub(crate) fn shut_down(&self, reporter: &Reporter) {
        self.is_shutting_down.store(true, Ordering::SeqCst);
        self.close(reporter);
    }

    /// Waits until acquires are refused.
    pub(crate) async fn closed(&self) {
        self.wait_until(|| self.is_closing()).await;
    }

    /// Waits until the shutdown begins.
    pub(crate) async fn shut_down_begun(&self) {
        self.wait_until(|| self.is_shutting_down()).await;
    }

    /// Waits until no lock is held and no acquire is in progress. Only for use after
    /// [`close`](Self::close).
    pub(crate) async fn idle(&self) {
        self.wait_until(|| self.held() == 0 && self.acquiring() == 0)
            .await;
    }

    async fn wait_until(&self, is_true: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            if is_true() {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn idle_completes_at_the_last_end() {
        let (activity, reporter) = (Activity::default(), Reporter::default());
        activity.begin_acquire();
        activity.begin_hold();
        activity.begin_hold();
        let mut cx = Context::from_waker(Waker::noop());
        let mut closed = pin!(activity.closed());
        assert!(closed.as_mut().poll(&mut cx).is_pending());
        activity.close(&reporter);
        assert!(closed.as_mut().poll(&mut cx).is_ready());
        let mut idle = pin!(activity.idle());
        for _ in 0..2 {
            assert!(idle.as_mut().poll(&mut cx).is_pending());
            activity.end_hold(&reporter);
        }
        assert!(idle.as_mut().poll(&mut cx).is_pending());
        activity.end_acquire(&reporter);
        assert!(idle.as_mut().poll(&mut cx).is_ready());
        assert_eq!((activity.held(), activity.acquiring()), (0, 0));
    }
}
