//! Records the loss of a lock at the moment at which the library reports it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lock_core::{LockWatch, LossSignal, testing};
use tokio::task::JoinHandle;

use crate::record::AcquisitionRecord;

/// The shortest interval between two reads of the end of a lease.
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
    lost: LossSignal,
    waker: Arc<LossWaker>,
}

/// The waker that the library wakes when the lock is lost. It takes the time in that call. The task,
/// which writes the record, may run much later, when another caller already has the lock.
struct LossWaker {
    record: AcquisitionRecord,
    watch: LockWatch,
    is_noted: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl LossWaker {
    fn note_loss(&self) {
        if self.watch.is_lost() && !self.is_noted.swap(true, Ordering::AcqRel) {
            self.record.note_loss(&self.watch);
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
        self.note_loss();
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
            is_noted: AtomicBool::new(false),
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
            self.waker.note_loss();
            self.waker.record.write_losses();
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

#[cfg(test)]
mod tests {
    use lock_core::LockManager;

    use crate::{Recorder, in_memory_with_faults};

    #[tokio::test(start_paused = true)]
    async fn library_does_not_wait_for_the_record_of_a_loss() {
        let (locks, faults) = in_memory_with_faults(LockManager::builder()).unwrap();
        let recorder = Recorder::new(locks);
        let guard = recorder.lock("a").acquire().await.unwrap();
        {
            // As while another task writes to the file.
            let _busy = recorder.sink.state();
            assert!(faults.lose("a") && guard.is_lost());
        }
        // The task that writes the record has not run yet.
        assert!(recorder.history().held_locks()[0].lost.is_some());
    }
}
