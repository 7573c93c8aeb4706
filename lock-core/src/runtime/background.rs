//! The background worker: one thread for each manager. It renews leases, sends the releases and
//! cancels of dropped guards and futures, and receives notifications.
//!
//! The thread has its own runtime, which drives connections of its own. Other runtimes may use them. A blocked executor
//! cannot stop renewals, and a guard that is dropped while its runtime shuts down is still released. The thread lives
//! until the last handle is dropped and all its work is done.
//!
//! # One turn
//!
//! 0. Write the ages of the oldest locks, now and then, if a recorder wants them ([`oldest`]).
//! 1. Take the leases that are due ([`deadlines`](crate::runtime::deadlines)), and begin their renewals.
//! 2. Send releases and cancels, in few and small batches ([`cleanup`]). Second, so that renewals don't wait for them.
//! 3. Sleep until the next deadline, or until someone wakes the thread.
//!
//! Renewals, cleanup and the listeners are tasks of the thread's runtime, which run between the turns and while it
//! sleeps.
//!
//! # Panics
//!
//! A panic on the thread does not stop the work: the worker counts it, and repeats what was in progress. Whatever was
//! taken to be worked on is in a value whose drop puts it back: [`Taken`], and `InFlight` of the cleanup.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::{BackendErrorKind, LockError};
use crate::runtime::deadlines::{Deadlines, Taken};
use crate::runtime::held_lock::HeldLock;
use crate::runtime::notifications::Notifications;
use crate::store::{AFTER_PANIC, Store, WORKER_THREAD, supervised};
use crate::sync::{Process, assert_no_mutex_held, catch, caught};
use crate::telemetry::{LockEvent, PanicSource, Reporter};
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::lease::LeaseAction;

mod cleanup;
mod oldest;

use cleanup::CleanupRunner;
use oldest::OldestHeld;

/// The leases in one pipeline: enough to make the round trip cheap, few enough not to delay the
/// commands behind it.
const BATCH: usize = 128;
/// A message about a release is no reason to doubt a lock that was confirmed less than this long ago: it is about the
/// release before.
const JUST_CONFIRMED: Duration = Duration::from_millis(20);
/// The least time between two renewals for such messages.
const BETWEEN_DOUBTS: Duration = Duration::from_millis(20);
/// The pauses between the attempts to connect for the first time. Calls that wait try more often.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Without a timer that counts suspension, a wakeup this often notices it.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);

/// The handle of the background worker. The thread ends when the last handle is dropped and its
/// work is done.
pub(crate) struct BackgroundWorker {
    state: Arc<WorkerState>,
    thread: JoinHandle<()>,
    /// The process of the thread. A forked child has no such thread.
    process: Process,
}

/// What the tasks of the worker and its handle share.
struct WorkerState {
    context: Arc<WorkerContext>,
    deadlines: Arc<Deadlines>,
    cleanup: Arc<CleanupRunner>,
    closing: AtomicBool,
    first_use: FirstUse,
}

/// Whether the store was connected when the worker began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstUse {
    Connected,
    /// The worker connects it.
    Lazy,
}

/// What all tasks of the worker need.
struct WorkerContext {
    store: Arc<dyn Store>,
    notifications: Arc<Notifications>,
    reporter: Arc<Reporter>,
    command_timeout: Duration,
    /// Wakes the thread when there is work.
    wake: Arc<Notify>,
}

impl WorkerContext {
    fn now(&self) -> Moment {
        self.store.clock().now()
    }

    /// Runs a task on the worker's runtime, and counts its panic. The drop of the task puts
    /// unfinished work back.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let reporter = Arc::clone(&self.reporter);
        assert_no_mutex_held();
        tokio::spawn(async move {
            if let Err(payload) = caught(task).await {
                reporter.panicked(PanicSource::Worker, payload);
            }
        });
    }
}

impl BackgroundWorker {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        notifications: Arc<Notifications>,
        reporter: Arc<Reporter>,
        command_timeout: Duration,
        first_use: FirstUse,
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
        let wake = Arc::<Notify>::default();
        let deadlines = Deadlines::new(store.clock(), Arc::clone(&wake));
        let context = Arc::new(WorkerContext {
            store,
            notifications,
            reporter,
            command_timeout,
            wake,
        });
        let state = Arc::new(WorkerState {
            cleanup: Arc::new(CleanupRunner::new(Arc::clone(&context))),
            context,
            deadlines: Arc::new(deadlines),
            closing: AtomicBool::new(false),
            first_use,
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
        if let Some(due) = held.next_deadline() {
            self.state.deadlines.put(due, held);
        }
    }

    /// Forgets a lock whose release has begun.
    pub(crate) fn untrack(&self, held: &HeldLock) {
        self.state.deadlines.remove(held);
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

    /// Returns the age of the oldest held lock of each template.
    pub(crate) fn oldest(&self, now: Moment) -> BTreeMap<&'static str, Duration> {
        self.state.deadlines.oldest(now)
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
    let mut oldest = OldestHeld::default();
    loop {
        let now = clock.now();
        oldest.write(state, now);
        renew_due(state, state.deadlines.take_due(now), now);
        state.cleanup.dispatch(now);
        let idle = state.cleanup.open() == 0;
        if state.closing.load(Ordering::Acquire) && idle {
            let limit = state.context.command_timeout;
            let drained = state.context.store.drained();
            let _ended_or_expires = tokio::time::timeout(limit, drained).await;
            oldest.clear(state);
            break;
        }
        let woken = state.context.wake.notified();
        let wakeups = [
            state.deadlines.next(),
            state.cleanup.next_at(),
            oldest.next_at(),
        ];
        match wakeups.into_iter().flatten().min() {
            None => woken.await,
            Some(at) => tokio::select! {
                () = woken => {}
                () = timer.sleep_until(at) => {}
            },
        }
    }
}

/// Performs the next action of each lease. Renewals go out together, many in one pipeline.
fn renew_due(state: &Arc<WorkerState>, due: Taken, now: Moment) {
    let mut renewals = due.filter_map(|_, held| {
        let action = held.next_action();
        // A lease that has ended was reported when its action was read.
        if let LeaseAction::WaitUntil(at) = action {
            state.deadlines.put(at, held);
        }
        action.renewal_limit(now, state.context.command_timeout)
    });
    renewals.sort_descending();
    while let Some((limit, batch)) = next_batch(&mut renewals) {
        state.context.spawn(renew(Arc::clone(state), batch, limit));
    }
}

/// Takes the leases whose renewals have the shortest time limit, and others with about the same one. Otherwise a lease
/// that ends soon would limit the time of its whole batch. The leases are in descending order.
fn next_batch(leases: &mut Taken<Duration>) -> Option<(Duration, Taken<Duration>)> {
    // Transactions run one after another: no other lease is to wait for their replies.
    let goes_alone = |held: &HeldLock| held.key.dialect().capabilities().works_without_scripts();
    let mut shortest_first = leases.iter().rev();
    let (limit, first) = shortest_first.next()?;
    let limit = *limit;
    let mut count = 1;
    if !goes_alone(first) {
        let joins = |(most, held): &&(Duration, Arc<HeldLock>)| {
            *most <= limit.saturating_mul(2) && !goes_alone(held)
        };
        count += shortest_first.take(BATCH - 1).take_while(joins).count();
    }
    Some((limit, leases.split_last(count)))
}

async fn renew(state: Arc<WorkerState>, leases: Taken<Duration>, limit: Duration) {
    let renewals: Vec<_> = leases.iter().map(|(_, held)| held.renewal()).collect();
    let renewing = state.context.store.renew_all(&renewals, limit);
    // The end of each lease stays scheduled: the reply may never come.
    for (_, held) in leases.iter() {
        if let Some(deadline) = held.deadline() {
            state.deadlines.put(deadline, held);
        }
    }
    let mut results = renewing.await;
    // From the last to the first, as `filter_map` goes. A lease without a result is put back.
    let _unanswered = leases.filter_map(|limit, held| {
        let Some(result) = results.pop() else {
            return Some(limit);
        };
        apply_result(&state, held, result);
        None
    });
}

fn apply_result(
    state: &WorkerState,
    held: &Arc<HeldLock>,
    result: Result<RenewOutcome, LockError>,
) {
    // The held lock reports the outcome.
    let _reported = held.apply_renewal(result);
    match held.next_deadline() {
        Some(due) => state.deadlines.put(due, held),
        None => state.deadlines.remove(held),
    }
}

/// Renews all leases whenever another server has become the primary.
async fn follow_primary(state: &WorkerState) {
    loop {
        state.context.notifications.renewals_wanted().await;
        let now = state.context.now();
        let taken = state.deadlines.take_all();
        taken.put_back(|due, held| if held.renew_soon(now) { now } else { due });
    }
}

/// Renews the leases of locks whose release was announced while a guard holds them: another client may have
/// removed them by force.
async fn follow_releases(state: &WorkerState) {
    loop {
        let keys = state.context.notifications.released_keys().await;
        let now = state.context.now();
        let taken = state.deadlines.take_of(&keys);
        taken.put_back(|due, held| {
            let is_doubted = held.confirmed_at().plus(JUST_CONFIRMED) < now;
            let is_renewed = is_doubted && held.renew_soon(now);
            if is_renewed { now } else { due }
        });
        // Any client with the right to publish can send messages as often as it likes.
        tokio::time::sleep(BETWEEN_DOUBTS).await;
    }
}

/// Connects for the first time. Goes on until it succeeds, even when only an operator can help.
async fn connect(state: &WorkerState) {
    if state.first_use == FirstUse::Connected {
        return;
    }
    let WorkerContext {
        store,
        reporter,
        command_timeout,
        ..
    } = &*state.context;
    let mut pauses = Backoff::between(FIRST_PAUSE, LONGEST_PAUSE, Jitter::from_os());
    let mut reported = None;
    loop {
        let until = state.context.now().plus(*command_timeout);
        let Err(error) = store.wait_connected(until).await else {
            return;
        };
        if reported.replace(error.code()) != Some(error.code())
            && let Some(server) = store.server()
        {
            let server = &server;
            let error = &error;
            reporter.emit(&LockEvent::NotConnected { server, error });
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

async fn listen(state: Arc<WorkerState>) {
    let reporter = &state.context.reporter;
    tokio::join!(
        state.context.store.listen(),
        supervised(reporter, || Box::pin(connect(&state))),
        supervised(reporter, || Box::pin(follow_primary(&state))),
        supervised(reporter, || Box::pin(follow_releases(&state)))
    );
}

/// Sleeps until a moment of the worker's clock.
///
/// The clock of leases continues while the machine is suspended, and tokio's timers stand still. On Linux a timer of
/// that clock wakes the thread, exactly when it is needed. Elsewhere the thread looks at the clock a few times a second.
struct Timer {
    clock: Clock,
    #[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
    boottime: Option<boottime::BoottimeTimer>,
}

impl Timer {
    /// Creates a timer for the current runtime.
    fn new(clock: Clock) -> Self {
        Self {
            clock,
            #[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
            boottime: match clock {
                Clock::System => boottime::BoottimeTimer::new().ok(),
                Clock::Tokio => None,
            },
        }
    }

    async fn sleep_until(&self, at: Moment) {
        #[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
        if let Some(timer) = &self.boottime
            && timer.sleep_until(at).await.is_ok()
        {
            return;
        }
        self.sleep_in_parts(at).await;
    }

    async fn sleep_in_parts(&self, at: Moment) {
        loop {
            let left = at.since(self.clock.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
        }
    }
}

#[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
mod boottime {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use lock_protocol::clock::Moment;

    /// A timer of `CLOCK_BOOTTIME`, which [`Clock::System`](lock_protocol::clock::Clock) reads.
    pub(super) struct BoottimeTimer(AsyncFd<OwnedFd>);

    impl BoottimeTimer {
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; an `OwnedFd` that nothing else uses is safe"
        )]
        pub(super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
            Ok(Self(AsyncFd::with_interest(fd, Interest::READABLE)?))
        }

        pub(super) async fn sleep_until(&self, at: Moment) -> io::Result<()> {
            const NANOS: u64 = 1_000_000_000;
            // Zero would disarm the timer.
            let nanos = at.as_nanos().max(1);
            let expiry = Itimerspec {
                it_interval: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: Timespec {
                    tv_sec: i64::try_from(nanos / NANOS).unwrap_or(i64::MAX),
                    tv_nsec: i64::try_from(nanos % NANOS).unwrap_or(0),
                },
            };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &expiry)?;
            let expirations = |fd: &OwnedFd| Ok(rustix::io::read(fd, &mut [0; 8])?);
            self.0.async_io(Interest::READABLE, expirations).await?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
