//! The keeper: one thread for each manager that renews, releases what was dropped, settles
//! what had no answer, and listens for pushes.
//!
//! It has its own runtime, and so its own connections: a blocked executor cannot stop
//! renewals, and a guard that is dropped while its runtime shuts down is still released. It
//! lives while a handle, a job or a lease lives.
//!
//! Renewals come first: what is cleaned up goes out in few and small portions between them. A panic
//! on the thread, of a tracing subscriber say, ends nothing: it is counted, and what was under way
//! is done again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Backend, RenewOutcome};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::Moment;
use crate::protocol::lease::LeaseAction;
use crate::protocol::owner_id::OwnerId;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::notifications::Notifications;
use crate::stats::Counters;
use crate::sync::{Mutex, Process, catch, caught};
use tracing::{debug, warn};

mod cleanup;
mod context;

use cleanup::Cleanup;
pub(crate) use cleanup::CleanupJob;
use context::WorkerContext;

/// Leases in one pipeline: enough to make the round trip cheap, few enough not to hold up
/// what comes behind it.
const BATCH: usize = 128;
/// Timers stand still while the machine is suspended; a look this often finds out.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// A failed renewal is repeated after a tenth of what is left, within these bounds.
const RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(1);
/// Before the thread goes on after a panic: what panicked may do so again.
const AFTER_PANIC: Duration = Duration::from_millis(20);

/// The way to the keeper. The thread ends when the last handle is gone and its work is done.
pub(crate) struct BackgroundWorker {
    state: Arc<WorkerState>,
    /// Where the thread is. A child has none to be told anything.
    process: Process,
}

struct WorkerState {
    context: Arc<WorkerContext>,
    schedule: Mutex<Schedule>,
    cleanup: Arc<Cleanup>,
    closing: AtomicBool,
}

#[derive(Default)]
struct Schedule {
    due: BTreeMap<(Moment, OwnerId), Arc<HeldLock>>,
    /// When the keeper will look by itself.
    next_wakeup: Option<Moment>,
    /// Something was put here since the last look.
    dirty: bool,
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
                "cannot start the keeper thread",
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
            cleanup: Arc::new(Cleanup::new(Arc::clone(&context))),
            context,
            schedule: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let work = Arc::clone(&state);
        std::thread::Builder::new()
            .name("lock-keeper".into())
            .spawn(move || run(&runtime, &work))
            .map_err(failed)?;
        Ok(Self {
            state,
            process: Process::current(),
        })
    }

    /// Renews the lease and watches over its end, until it is released or lost.
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

    pub(crate) fn submit(&self, job: CleanupJob) {
        self.state.cleanup.put(job);
    }

    /// Waits until no release or settlement is open, at most for the limit. How many are left, with
    /// those that were given up while their leases last.
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

impl Schedule {
    /// Whether the keeper has to be woken for it.
    fn put(&mut self, due: Moment, held: &Arc<HeldLock>) -> bool {
        // Never the last one: the caller has another.
        self.remove(held);
        // A guard may be released between two steps of the keeper: then it stays out.
        if held.is_released() {
            return false;
        }
        held.set_scheduled(Some(due));
        self.due.insert((due, held.owner_id), Arc::clone(held));
        self.dirty = true;
        self.next_wakeup.is_none_or(|next_wakeup| due < next_wakeup)
    }

    /// The caller drops what was here, and with it the wakers of those who wait for its loss.
    fn remove(&mut self, held: &HeldLock) -> Option<Arc<HeldLock>> {
        let at = held.scheduled_at()?;
        held.set_scheduled(None);
        self.due.remove(&(at, held.owner_id))
    }

    fn take_due(&mut self, now: Moment) -> Vec<Arc<HeldLock>> {
        let mut due = Vec::new();
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            let held = first.remove();
            held.set_scheduled(None);
            due.push(held);
        }
        due
    }

    fn plan_wakeup(&mut self, now: Moment, cleanup: Option<Moment>) -> Option<Duration> {
        let first = self.due.first_key_value().map(|((at, _), _)| *at);
        // Not at rest as soon as nothing is held: where short sections follow each other, each
        // would wake the keeper, which costs as much as a command.
        let expected = std::mem::take(&mut self.dirty).then_some(LONGEST_SLEEP);
        let pauses = [first, cleanup].into_iter().flatten();
        let pause = pauses
            .map(|at| at.since(now).min(LONGEST_SLEEP))
            .min()
            .or(expected);
        self.next_wakeup = pause.map(|pause| now.plus(pause));
        pause
    }
}

/// The thread. Goes on after a panic, with all that is scheduled and queued.
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

/// Ends with the thread's work, also when that panics.
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

/// Leases that were taken out of the schedule. Whatever happens to their renewal, those that it
/// came to nothing for go back.
struct DueLeases {
    state: Arc<WorkerState>,
    locks: Vec<Arc<HeldLock>>,
}

impl Drop for DueLeases {
    fn drop(&mut self) {
        let again_at = self.state.context.now().plus(*RETRY.start());
        for held in self.locks.drain(..) {
            self.state.schedule.lock().put(again_at, &held);
        }
    }
}

/// Asks each lease what it wants, and renews those that want it, many in one pipeline.
fn renew_due(state: &Arc<WorkerState>, due: Vec<Arc<HeldLock>>, now: Moment) {
    let mut due = DueLeases {
        state: Arc::clone(state),
        locks: due,
    };
    let mut renewed = Vec::new();
    while let Some(held) = due.locks.last() {
        let next_action = held.next_action(now);
        let Some(held) = due.locks.pop() else {
            break;
        };
        match next_action {
            LeaseAction::Renew { before } => renewed.push((before.since(now), held)),
            LeaseAction::WaitUntil(at) => {
                state.schedule.lock().put(at, &held);
            }
            LeaseAction::Done if held.is_released() => {}
            LeaseAction::Done => state
                .context
                .counters
                .trace(|| warn!(key = %held.key, "lock lost: its lease ended")),
        }
    }
    for (limit, locks) in batches(renewed, state.context.command_timeout) {
        let leases = DueLeases {
            state: Arc::clone(state),
            locks,
        };
        state.context.spawn(renew(leases, limit));
    }
}

/// Puts leases together whose renewals may take about the same time: one that is nearly over would
/// else take the time from all others of its batch.
fn batches(
    mut leases: Vec<(Duration, Arc<HeldLock>)>,
    command_timeout: Duration,
) -> Vec<(Duration, Vec<Arc<HeldLock>>)> {
    for (left, _) in &mut leases {
        *left = command_timeout.min(*left);
    }
    leases.sort_by_key(|(left, _)| *left);
    let mut batches: Vec<(Duration, Vec<Arc<HeldLock>>)> = Vec::new();
    let mut goes_alone = false;
    for (left, held) in leases {
        // Transactions come one after another: nobody is to wait for their answers.
        let is_alone = held.key.dialect().capabilities().without_scripts;
        match batches.last_mut() {
            Some((limit, batch))
                if !is_alone
                    && !goes_alone
                    && batch.len() < BATCH
                    && left <= limit.saturating_mul(2) =>
            {
                batch.push(held);
            }
            _ => batches.push((left, vec![held])),
        }
        goes_alone = is_alone;
    }
    batches
}

async fn renew(mut leases: DueLeases, limit: Duration) {
    let state = Arc::clone(&leases.state);
    let renewals: Vec<_> = leases.locks.iter().map(|held| held.renewal()).collect();
    let renewing = state.context.backend.renew(&renewals, limit);
    // The end of each lease is watched meanwhile: an answer may never come.
    for held in &leases.locks {
        if let Some(deadline) = held.deadline() {
            state.schedule.lock().put(deadline, held);
        }
    }
    let mut answers = renewing.await;
    // From the back, so that what is done leaves `taken` and what is not stays there.
    while let (Some(held), Some(answer)) = (leases.locks.last(), answers.pop()) {
        apply_outcome(&state, held, answer);
        leases.locks.pop();
    }
    state.context.wake.notify_one();
}

fn apply_outcome(state: &WorkerState, held: &Arc<HeldLock>, answer: RenewOutcome) {
    let pause = (held.remaining() / 10).clamp(*RETRY.start(), *RETRY.end());
    let again_at = state.context.now().plus(pause);
    if held.apply_renewal(answer, again_at).is_ok() {
        state
            .context
            .counters
            .trace(|| debug!(key = %held.key, "lease renewed"));
    }
    if let Some(due) = held.next_deadline() {
        state.schedule.lock().put(due, held);
    } else {
        let removed = state.schedule.lock().remove(held);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::backend::{
        AcquireOutcome, Acquisition, Boxed, ReleaseOutcome, ReleaseRequest, Renewal,
    };
    use crate::protocol::clock::{Clock, ServerMs};
    use crate::protocol::dialect::{Dialect, ReleaseMethod};
    use crate::protocol::key::{LockKey, LockName};
    use crate::protocol::lease::{Lease, LeaseConfig};
    use crate::protocol::renew::Renew;
    use crate::protocol::ttl::Ttl;

    /// Panics at the first of each kind of call, and then does what it is asked for.
    #[derive(Default)]
    struct Panicking {
        /// On the thread itself, and not in one of its tasks.
        steps: AtomicUsize,
        renewals: AtomicUsize,
        releases: AtomicUsize,
        listens: AtomicUsize,
        /// How many each batch of releases held.
        batches: Mutex<Vec<usize>>,
        /// Releases that go by themselves: how many are under way, and how many were at most.
        alone: AtomicUsize,
        most_alone: AtomicUsize,
    }

    fn released() -> ReleaseOutcome {
        ReleaseOutcome {
            was_owner: true,
            server_ms: ServerMs::new(1),
            more: false,
        }
    }

    impl Backend for Panicking {
        fn clock(&self) -> Clock {
            if std::thread::current().name() == Some("lock-keeper") {
                let before = self.steps.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first step of the thread panics");
            }
            Clock::System
        }

        fn acquire<'a>(
            &'a self,
            _attempt: &'a mut Acquisition,
            _limit: Duration,
        ) -> Boxed<'a, Result<AcquireOutcome, LockError>> {
            unreachable!("nobody acquires here")
        }

        fn renew<'a>(
            &'a self,
            renewals: &'a [Renewal],
            _: Duration,
        ) -> Boxed<'a, Vec<RenewOutcome>> {
            Box::pin(async move {
                let before = self.renewals.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first renewal panics");
                let held = |renewal: &Renewal| RenewOutcome::Held {
                    token: None,
                    sent: Clock::System.now(),
                    remaining: renewal.ttl,
                };
                renewals.iter().map(held).collect()
            })
        }

        fn release<'a>(
            &'a self,
            _ending: &'a ReleaseRequest,
            _limit: Duration,
        ) -> Boxed<'a, Result<ReleaseOutcome, LockError>> {
            Box::pin(async move {
                let before = self.releases.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first release panics");
                let alone = self.alone.fetch_add(1, Ordering::AcqRel) + 1;
                self.most_alone.fetch_max(alone, Ordering::AcqRel);
                tokio::task::yield_now().await;
                self.alone.fetch_sub(1, Ordering::AcqRel);
                Ok(released())
            })
        }

        fn can_batch_release(&self, key: &LockKey) -> bool {
            !key.dialect().capabilities().without_scripts
        }

        fn release_all<'a>(
            &'a self,
            release_requests: &'a [ReleaseRequest],
            _limit: Duration,
        ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
            Box::pin(async move {
                self.batches.lock().push(release_requests.len());
                let before = self.releases.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first batch panics");
                release_requests.iter().map(|_| Ok(released())).collect()
            })
        }

        fn seems_down(&self) -> bool {
            false
        }

        fn is_connected(&self) -> bool {
            true
        }

        fn wait_connected(&self, _until: Moment) -> Boxed<'_, Result<(), LockError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn listen(&self) -> Boxed<'_, ()> {
            Box::pin(async move {
                let before = self.listens.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first listener panics");
                std::future::pending::<()>().await;
            })
        }

        fn holds_without_renewal(&self) -> bool {
            false
        }
    }

    fn key() -> LockKey {
        LockKey::new("", &LockName::from("k")).unwrap()
    }

    fn ttl(ms: u64) -> Ttl {
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    fn held(ttl_ms: u64) -> Arc<HeldLock> {
        let lease_config = LeaseConfig {
            ttl: ttl(ttl_ms),
            renew: Renew::Every(Duration::from_millis(50)),
            max_hold: None,
            margin: Duration::ZERO,
        };
        let now = Clock::System.now();
        let lease = Lease::confirmed(lease_config, now, lease_config.ttl.as_duration());
        Arc::new(HeldLock::new(
            key(),
            OwnerId::random(),
            None,
            Clock::System,
            lease,
            Arc::default(),
            Process::current(),
        ))
    }

    fn job(origin: Option<u64>) -> CleanupJob {
        CleanupJob {
            release_request: ReleaseRequest {
                key: key(),
                owner_id: OwnerId::random(),
                ttl: ttl(60_000),
                entries: Vec::new(),
                origin,
                unconfirmed_until_ms: None,
                min_hold_until: None,
            },
            give_up_at: Clock::System.now().plus(Duration::from_secs(60)),
        }
    }

    const SOON: Duration = Duration::from_secs(10);

    fn start(backend: &Arc<Panicking>) -> (BackgroundWorker, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let timeout = Duration::from_millis(500);
        let backend: Arc<dyn Backend> = Arc::<Panicking>::clone(backend);
        let worker =
            BackgroundWorker::start(backend, Arc::default(), Arc::clone(&counters), timeout);
        (worker.unwrap(), counters)
    }

    #[tokio::test]
    async fn what_panics_is_done_again() {
        let backend = Arc::new(Panicking::default());
        let (worker, counters) = start(&backend);
        // Long, since a panic takes its time to be printed.
        let held = held(10_000);
        worker.track(&held);
        for origin in [None, Some(7), None] {
            worker.submit(job(origin));
        }
        assert_eq!(
            worker.drain(SOON).await,
            0,
            "each job stayed counted, and is done"
        );
        let started = Clock::System.now();
        let again = |calls: &AtomicUsize| calls.load(Ordering::Acquire) >= 3;
        while !again(&backend.renewals) || backend.listens.load(Ordering::Acquire) < 2 {
            assert!(
                Clock::System.now().since(started) < SOON,
                "it is not done again"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!held.is_lost());
        assert_eq!(counters.read().panics, 4);
    }

    #[tokio::test]
    async fn a_burst_goes_out_in_bounded_batches() {
        const BURST: usize = 5_000;
        let backend = Arc::new(Panicking::default());
        backend.releases.store(1, Ordering::Release);
        let (worker, _) = start(&backend);
        for _ in 0..BURST {
            worker.submit(job(None));
        }
        assert_eq!(worker.drain(SOON).await, 0);
        let batches = std::mem::take(&mut *backend.batches.lock());
        assert_eq!(batches.iter().sum::<usize>(), BURST);
        assert!(batches.iter().all(|count| *count <= 128), "{batches:?}");
    }

    /// Transactions come one after another on their connection, and a renewal comes after all that
    /// were sent before.
    #[tokio::test]
    async fn a_burst_of_transactions_stands_before_no_renewal() {
        const BURST: usize = 1_000;
        let backend = Arc::new(Panicking::default());
        backend.releases.store(1, Ordering::Release);
        let (worker, _) = start(&backend);
        let release = ReleaseMethod::WatchMulti;
        for _ in 0..BURST {
            let mut job = job(None);
            job.release_request.key = key().in_dialect(Dialect::SetNxPx { release });
            worker.submit(job);
        }
        assert_eq!(worker.drain(SOON).await, 0);
        assert_eq!(backend.releases.load(Ordering::Acquire), BURST + 1);
        assert!(backend.most_alone.load(Ordering::Acquire) <= 2);
    }

    #[test]
    fn a_lease_that_is_nearly_over_takes_no_time_from_others() {
        let ms = Duration::from_millis;
        let timeout = ms(1_000);
        let lefts = [1, 20_000, 30, 40, 2, 20_001, 900, 1_001];
        let leases = lefts.map(|left| (ms(left), held(1_000))).to_vec();
        let batches = batches(leases, timeout);
        let shapes: Vec<_> = batches
            .iter()
            .map(|(limit, locks)| (limit.as_millis(), locks.len()))
            .collect();
        assert_eq!(shapes, [(1, 2), (30, 2), (900, 4)]);
        let many = (0..300).map(|_| (timeout, held(1_000))).collect();
        let sizes: Vec<_> = super::batches(many, timeout)
            .iter()
            .map(|(_, locks)| locks.len())
            .collect();
        assert_eq!(sizes, [128, 128, 44]);
    }
}
