//! The background worker: one thread for each manager. It renews leases, sends the releases and
//! cancels of dropped guards and futures, and receives notifications.
//!
//! The thread has its own runtime, which drives connections of its own. Other runtimes may use them. A blocked executor cannot stop
//! renewals, and a guard that is dropped while its runtime shuts down is still released. The thread
//! lives until the last handle is dropped and all its work is done.
//!
//! Renewals come first: cleanup goes out between them, in few and small batches. A panic on the
//! thread, such as one in a tracing subscriber, does not stop the work: the worker counts it, and
//! repeats what was in progress.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{BackendErrorKind, LockError};
use crate::runtime::held_lock::HeldLock;
use crate::runtime::notifications::Notifications;
use crate::store::{AFTER_PANIC, Store, WORKER_THREAD, supervised};
use crate::sync::{Mutex, Process, catch};
use crate::telemetry::{PanicSource, Reporter};
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::Moment;

mod cleanup;
mod context;
mod renewal;
mod schedule;
mod timer;
mod young;

use cleanup::CleanupRunner;
use context::WorkerContext;
use renewal::renew_due;
use schedule::Schedule;
use timer::Timer;
use young::YoungLocks;

/// The leases in one pipeline: enough to make the round trip cheap, few enough not to delay the
/// commands behind it.
const BATCH: usize = 128;
/// A message about a release is no reason to doubt a lock that was confirmed less than this long ago: it is about the
/// release before.
const JUST_CONFIRMED: Duration = Duration::from_millis(20);
/// The least time between two renewals for such messages.
const BETWEEN_DOUBTS: Duration = Duration::from_millis(20);

/// The handle of the background worker. The thread ends when the last handle is dropped and its
/// work is done.
pub(crate) struct BackgroundWorker {
    state: Arc<WorkerState>,
    thread: JoinHandle<()>,
    /// The process of the thread. A forked child has no such thread.
    process: Process,
}

struct WorkerState {
    context: Arc<WorkerContext>,
    /// Locks that no renewal is due for yet.
    young: YoungLocks,
    schedule: Mutex<Schedule>,
    /// When the thread wakes without a notification, in nanoseconds; [`NOT_PLANNED`] while it is awake,
    /// or when it sleeps until it is notified.
    next_wakeup: AtomicU64,
    cleanup: Arc<CleanupRunner>,
    closing: AtomicBool,
}

/// Any deadline is earlier.
const NOT_PLANNED: u64 = u64::MAX;

impl WorkerState {
    /// Schedules the next action on a lock.
    fn schedule(&self, due: Moment, held: &Arc<HeldLock>) {
        self.schedule.lock().put(due, held);
        self.wake_for(due);
    }

    /// Wakes the thread if it would sleep longer.
    fn wake_for(&self, due: Moment) {
        if due.as_nanos() < self.next_wakeup.load(Ordering::SeqCst) {
            self.context.wake.notify_one();
        }
    }

    /// Makes all renewals due now.
    fn renew_all(&self) {
        let now = self.context.now();
        let young = self.young.take_all();
        let scheduled = self.schedule.lock().all();
        for held in young.iter().chain(&scheduled) {
            if held.renew_soon(now) {
                self.schedule(now, held);
            } else if let Some(due) = held.next_deadline() {
                self.schedule(due, held);
            }
        }
        self.context.wake.notify_one();
    }

    /// Makes the renewals of these locks due now, because a message says that they were released.
    fn renew_released(&self, keys: &HashSet<Arc<str>>) {
        let now = self.context.now();
        let mut locks = self.young.take_of(keys);
        locks.extend(self.schedule.lock().of(keys));
        for held in locks {
            let is_doubted = held.confirmed_at().plus(JUST_CONFIRMED) < now;
            if is_doubted && held.renew_soon(now) {
                self.schedule(now, &held);
            } else if let Some(due) = held.next_deadline() {
                self.schedule(due, &held);
            }
        }
    }

    /// Returns when the thread has to wake next.
    fn plan_wakeup(&self) -> Option<Moment> {
        let first = self.schedule.lock().first();
        let deadlines = [first, self.young.earliest(), self.cleanup.next_at()];
        let next = deadlines.into_iter().flatten().min();
        let nanos = next.map_or(NOT_PLANNED, Moment::as_nanos);
        self.next_wakeup.store(nanos, Ordering::SeqCst);
        next
    }
}

impl BackgroundWorker {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        notifications: Arc<Notifications>,
        reporter: Arc<Reporter>,
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
        store.driven_by(runtime.handle());
        let context = Arc::new(WorkerContext {
            store,
            notifications,
            reporter,
            command_timeout,
            wake: Notify::new(),
        });
        let state = Arc::new(WorkerState {
            cleanup: Arc::new(CleanupRunner::new(Arc::clone(&context))),
            context,
            young: YoungLocks::default(),
            schedule: Mutex::default(),
            next_wakeup: AtomicU64::new(NOT_PLANNED),
            closing: AtomicBool::new(false),
        });
        let work = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name(WORKER_THREAD.into())
            .spawn(move || run(&runtime, &work))
            .map_err(failed)?;
        Ok(Self {
            state,
            thread,
            process: Process::current(),
        })
    }

    /// Renews the lease and watches its end, until it is released or lost.
    pub(crate) fn track(&self, held: &Arc<HeldLock>) {
        let Some(due) = held.next_deadline() else {
            return;
        };
        if held.scheduled_at().is_some() {
            self.state.schedule(due, held);
        } else {
            self.state.young.put(due, held);
            self.state.wake_for(due);
        }
    }

    /// Forgets a lock whose release has begun.
    pub(crate) fn untrack(&self, held: &HeldLock) {
        drop(self.state.young.remove(held));
        // Most locks never enter the schedule. If the worker is about to schedule this one, it finds
        // that it is released.
        if held.scheduled_at().is_some() {
            let removed = self.state.schedule.lock().remove(held);
            drop(removed);
        }
    }

    /// Releases or cancels in the background.
    pub(crate) fn submit(&self, release_request: ReleaseRequest) {
        self.state.cleanup.put(release_request);
    }

    /// Waits until no release or cancel is open.
    pub(crate) async fn drained(&self) {
        self.state.cleanup.drained().await;
    }

    /// Returns the number of open releases and cancels. This includes releases that were given up while
    /// their leases last.
    pub(crate) fn open(&self) -> usize {
        self.state.cleanup.open() + self.state.cleanup.given_up()
    }

    /// Returns whether the thread runs.
    pub(crate) fn is_alive(&self) -> bool {
        !self.thread.is_finished()
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
                .reporter
                .panicked(PanicSource::Worker, payload),
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
    let clock = state.context.store.clock();
    let timer = Timer::new(clock);
    loop {
        // Whatever gets a deadline from now on wakes the thread: it may be too late for the plan.
        state.next_wakeup.store(NOT_PLANNED, Ordering::SeqCst);
        let now = clock.now();
        for held in state.young.take_due(now) {
            if let Some(due) = held.next_deadline() {
                state.schedule.lock().put(due, &held);
            }
        }
        let due = state.schedule.lock().take_due(now);
        renew_due(state, due, now);
        state.cleanup.dispatch(now);
        let idle = state.cleanup.open() == 0;
        if state.closing.load(Ordering::Acquire) && idle {
            let limit = state.context.command_timeout;
            let drained = state.context.store.drained();
            let _ended_or_expires = tokio::time::timeout(limit, drained).await;
            break;
        }
        let woken = state.context.wake.notified();
        match state.plan_wakeup() {
            None => woken.await,
            Some(at) => tokio::select! {
                () = woken => {}
                () = timer.sleep_until(at) => {}
            },
        }
    }
}

/// Renews all leases whenever another server has become the primary.
async fn follow_primary(state: &WorkerState) {
    loop {
        state.context.notifications.renewals_wanted().await;
        state.renew_all();
    }
}

/// Renews the leases of locks whose release was announced while a guard holds them: another client may have
/// removed them by force.
async fn follow_releases(state: &WorkerState) {
    loop {
        let keys = state.context.notifications.released_keys().await;
        state.renew_released(&keys);
        // Any client with the right to publish can send messages as often as it likes.
        tokio::time::sleep(BETWEEN_DOUBTS).await;
    }
}

async fn listen(state: Arc<WorkerState>) {
    let reporter = &state.context.reporter;
    tokio::join!(
        state.context.store.listen(),
        supervised(reporter, || Box::pin(follow_primary(&state))),
        supervised(reporter, || Box::pin(follow_releases(&state)))
    );
}

#[cfg(test)]
mod tests;
