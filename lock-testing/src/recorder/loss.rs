//! Records the loss of a lock at the moment at which the library reports it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lock_core::{LockWatch, Lost, testing};
use tokio::task::JoinHandle;

use crate::record::AcquisitionRecord;

/// The shortest interval between two looks at a lease.
const SHORTEST: Duration = Duration::from_millis(10);

/// Records renewals and the loss of one lock, until it is dropped.
pub(super) struct LeaseRecord(JoinHandle<()>);

impl LeaseRecord {
    pub(super) fn start(record: &AcquisitionRecord, watch: &LockWatch) -> Self {
        let mut loss = LossRecord::new(record, watch);
        // The lock may be lost before the task below runs for the first time.
        let is_lost = loss.poll_now(&mut Context::from_waker(Waker::noop()));
        let renewals = record_renewals(record.clone(), watch.clone());
        Self(tokio::spawn(async move {
            if is_lost.is_ready() {
                return;
            }
            tokio::select! {
                biased;
                () = loss => {}
                () = renewals => {}
            }
        }))
    }
}

impl Drop for LeaseRecord {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Records renewals, so that the record of a killed process shows how long its lock was valid.
async fn record_renewals(record: AcquisitionRecord, watch: LockWatch) {
    // A lock that is held as long as its guard exists has no renewals, and needs no timer.
    while testing::lease_end(&watch).is_some() && watch.is_held() {
        tokio::time::sleep((watch.remaining() / 3).max(SHORTEST)).await;
        record.lease(&watch);
    }
    std::future::pending::<()>().await;
}

/// Completes after it has recorded the loss.
struct LossRecord {
    lost: Lost,
    waker: Arc<LossWaker>,
}

/// The waker that the library wakes when the lock is lost. It records the loss in that call. The
/// task may run much later, when another caller already has the lock.
struct LossWaker {
    record: AcquisitionRecord,
    watch: LockWatch,
    is_recorded: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl LossWaker {
    fn record_loss(&self) {
        if self.watch.is_lost() && !self.is_recorded.swap(true, Ordering::AcqRel) {
            self.record.lost(&self.watch);
        }
    }

    /// Returns the waker that it replaces.
    fn set_task(&self, waker: Option<Waker>) -> Option<Waker> {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut task, waker)
    }
}

impl Wake for LossWaker {
    fn wake(self: Arc<Self>) {
        self.record_loss();
        if let Some(task) = self.set_task(None) {
            task.wake();
        }
    }
}

impl LossRecord {
    fn new(record: &AcquisitionRecord, watch: &LockWatch) -> Self {
        let waker = LossWaker {
            record: record.clone(),
            watch: watch.clone(),
            is_recorded: AtomicBool::new(false),
            task: Mutex::default(),
        };
        Self {
            lost: watch.lost(),
            waker: Arc::new(waker),
        }
    }

    fn poll_now(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Dropped outside of the mutex.
        drop(self.waker.set_task(Some(cx.waker().clone())));
        let waker = Waker::from(Arc::clone(&self.waker));
        let polled = Pin::new(&mut self.lost).poll(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            self.waker.record_loss();
        }
        polled
    }
}

impl Future for LossRecord {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_now(cx)
    }
}
