//! The background worker: one thread for each manager. It renews leases, sends the releases and
//! cancels of dropped guards and futures, and receives notifications.
//!
//! The thread has its own runtime, and so its own connections. A blocked executor cannot stop
//! renewals, and a guard that is dropped while its runtime shuts down is still released. The thread
//! lives until the last handle is dropped and all its work is done.
//!
//! Renewals come first: cleanup goes out between them, in few and small batches. A panic on the
//! thread, such as one in a tracing subscriber, does not stop the work: the worker counts it, and
//! repeats what was in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Backend;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::cleanup::ReleaseRequest;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::notifications::Notifications;
use crate::stats::Counters;
use crate::sync::{Mutex, Process, catch, caught};

mod cleanup;
mod context;
mod renewal;
mod schedule;

use cleanup::CleanupRunner;
use context::WorkerContext;
use renewal::renew_due;
use schedule::Schedule;

/// The leases in one pipeline: enough to make the round trip cheap, few enough not to delay the
/// commands behind it.
const BATCH: usize = 128;
/// Timers stand still while the machine is suspended; a wakeup this often notices the suspension.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// The pause of the thread after a panic, because the cause may repeat at once.
const AFTER_PANIC: Duration = Duration::from_millis(20);

/// The handle of the background worker. The thread ends when the last handle is dropped and its
/// work is done.
pub(crate) struct BackgroundWorker {
    state: Arc<WorkerState>,
    /// The process of the thread. A forked child has no such thread.
    process: Process,
}

struct WorkerState {
    context: Arc<WorkerContext>,
    schedule: Mutex<Schedule>,
    cleanup: Arc<CleanupRunner>,
    closing: AtomicBool,
}

impl BackgroundWorker {
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        notifications: Arc<Notifications>,
        counters: Arc<Counters>,
        command_timeout: Duration,
    ) -> Result<Self, LockError> {
        let failed = |error: std::io::Error| {
            LockError::caused(
                BackendErrorKind::BackgroundWorker,
                "cannot start the background thread",
                error,
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let context = Arc::new(WorkerContext {
            backend,
            notifications,
            counters,
            command_timeout,
            wake: Notify::new(),
        });
        let state = Arc::new(WorkerState {
            cleanup: Arc::new(CleanupRunner::new(Arc::clone(&context))),
            context,
            schedule: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let work = Arc::clone(&state);
        std::thread::Builder::new()
            .name("lock-background".into())
            .spawn(move || run(&runtime, &work))
            .map_err(failed)?;
        Ok(Self {
            state,
            process: Process::current(),
        })
    }

    /// Renews the lease and watches its end, until it is released or lost.
    pub(crate) fn track(&self, held: &Arc<HeldLock>) {
        let Some(due) = held.next_deadline() else {
            return;
        };
        let wakes = self.state.schedule.lock().put(due, held);
        if wakes {
            self.state.context.wake.notify_one();
        }
    }

    pub(crate) fn untrack(&self, held: &HeldLock) {
        let removed = self.state.schedule.lock().remove(held);
        drop(removed);
    }

    /// Releases or cancels in the background.
    pub(crate) fn submit(&self, release_request: ReleaseRequest) {
        self.state.cleanup.put(release_request);
    }

    /// Waits at most `limit` until no release or cancel is open. Returns how many are left; this
    /// includes releases that were given up while their leases last.
    pub(crate) async fn drain(&self, limit: Duration) -> usize {
        let cleanup = &self.state.cleanup;
        let open = match tokio::time::timeout(limit, cleanup.drained()).await {
            Ok(()) => 0,
            Err(_elapsed) => cleanup.open(),
        };
        open + cleanup.given_up()
    }
}

impl Drop for BackgroundWorker {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        self.state.closing.store(true, Ordering::Release);
        self.state.context.wake.notify_one();
    }
}

/// Runs the thread. Continues after a panic, with everything that is scheduled and queued.
fn run(runtime: &tokio::runtime::Runtime, state: &Arc<WorkerState>) {
    loop {
        match catch(|| runtime.block_on(run_worker(state))) {
            Ok(()) => return,
            Err(payload) => state
                .context
                .counters
                .panicked("the background thread", payload),
        }
        std::thread::sleep(AFTER_PANIC);
    }
}

/// Aborts the listener when the thread's work ends or panics.
struct ListenTask(tokio::task::JoinHandle<()>);

impl Drop for ListenTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run_worker(state: &Arc<WorkerState>) {
    let _listener = ListenTask(tokio::spawn(listen(Arc::clone(state))));
    let clock = state.context.backend.clock();
    loop {
        let now = clock.now();
        let due = state.schedule.lock().take_due(now);
        renew_due(state, due, now);
        state.cleanup.dispatch(now);
        let idle = state.cleanup.open() == 0;
        if state.closing.load(Ordering::Acquire) && idle {
            break;
        }
        let cleanup = state.cleanup.next_at();
        let pause = state.schedule.lock().plan_wakeup(clock.now(), cleanup);
        let woken = state.context.wake.notified();
        match pause {
            None => woken.await,
            Some(pause) => {
                let _timed_out_or_woken = tokio::time::timeout(pause, woken).await;
            }
        }
    }
}

async fn listen(state: Arc<WorkerState>) {
    while let Err(payload) = caught(state.context.backend.listen()).await {
        state
            .context
            .counters
            .panicked("the background thread", payload);
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

#[cfg(test)]
mod tests;
