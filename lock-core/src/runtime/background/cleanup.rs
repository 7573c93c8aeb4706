//! Sends releases and cancels in the background: of dropped guards and futures, and of acquires
//! without a reply.
//!
//! Releases of acquires with a reply go out in batches, a few at a time. So a burst of them delays
//! renewals neither on the thread nor on the server. A cancel whose acquire may still arrive goes
//! out alone, first on the connection of that acquire. On another connection it could overtake it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::WorkerContext;
use crate::error::LockError;
use crate::runtime::held_lock::report_success;
use crate::sync::Mutex;
use crate::telemetry::metrics::OpenCleanups;
use crate::telemetry::{CleanupEnd, CleanupOperation, LockEvent, PanicSource};
use lock_protocol::acquisition::Failure;
use lock_protocol::cleanup::{
    Cleanup, CleanupStep, GiveUpReason, ReleaseOutcome, ReleaseRequest, ReleaseSubject,
    ShutdownWaits,
};
use lock_protocol::clock::Moment;

mod queue;

use self::queue::{CleanupQueue, Lane, Progress};

/// The pause before a task is repeated after a panic.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// A release that failed this often is reported once as a warning.
const TRIES_TO_WARN: u32 = 3;

/// All open releases and cancels.
pub(super) struct CleanupRunner {
    context: Arc<WorkerContext>,
    queue: Mutex<CleanupQueue>,
    /// The number of jobs that are queued or in flight.
    open: AtomicUsize,
    drained: Notify,
    /// The ends of the leases whose releases the server has forbidden.
    given_up: Mutex<Vec<Moment>>,
    gauge: OpenCleanups,
}

impl CleanupRunner {
    pub(super) fn new(context: Arc<WorkerContext>) -> Self {
        Self {
            queue: Mutex::new(CleanupQueue::new(context.now())),
            context,
            open: AtomicUsize::new(0),
            drained: Notify::new(),
            given_up: Mutex::default(),
            gauge: OpenCleanups::default(),
        }
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the number of forbidden releases whose leases may still last.
    pub(super) fn given_up(&self) -> usize {
        let now = self.context.now();
        let mut given_up = self.given_up.lock();
        given_up.retain(|ends| now < *ends);
        given_up.len()
    }

    fn count_forbidden(&self, task: &Cleanup) {
        let now = self.context.now();
        let mut given_up = self.given_up.lock();
        // Only when the vector is full, so that the cost per lock does not grow with their number.
        if given_up.len() == given_up.capacity() {
            given_up.retain(|ends| now < *ends);
        }
        given_up.push(task.give_up_at());
    }

    pub(super) fn put(&self, request: ReleaseRequest) {
        self.open.fetch_add(1, Ordering::AcqRel);
        let lane = self.lane(&request);
        self.report_start(&request);
        let now = self.context.now();
        let task = Cleanup::new(request, now, self.context.command_timeout);
        self.queue.lock().put(task, lane);
        self.context.wake.notify_one();
    }

    /// Waits until no job is open.
    pub(super) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.open() == 0 {
                return;
            }
            drained.await;
        }
    }

    /// Returns when the queue needs the thread again without a notification.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.queue.lock().next_at()
    }

    /// Sends everything that may go out now.
    pub(super) fn dispatch(self: &Arc<Self>, now: Moment) {
        let due = self.queue.lock().take_due(now);
        for task in due {
            let lane = self.lane(task.request());
            self.queue.lock().put(task, lane);
        }
        loop {
            let batch = self.queue.lock().take_batch(now);
            if batch.is_empty() {
                break;
            }
            self.send(Lane::Batch, batch);
        }
        loop {
            let single = self.queue.lock().take_single();
            let Some((lane, single)) = single else {
                break;
            };
            self.send(lane, vec![single]);
        }
    }

    fn send(self: &Arc<Self>, lane: Lane, tasks: Vec<Cleanup>) {
        let in_flight = InFlight::new(self, lane, tasks);
        self.context.spawn(run(in_flight));
    }

    fn lane(&self, release_request: &ReleaseRequest) -> Lane {
        if release_request.origin.is_some() {
            Lane::Single
        } else if self.context.store.joins_batches(&release_request.key) {
            Lane::Batch
        } else if release_request
            .key
            .dialect()
            .capabilities()
            .works_without_scripts()
        {
            Lane::Sequential
        } else {
            Lane::Single
        }
    }

    fn defer(&self, at: Moment, task: Cleanup) {
        self.queue.lock().defer(at, task);
    }

    fn report_start(&self, request: &ReleaseRequest) {
        let reporter = &self.context.reporter;
        reporter.guarded(PanicSource::Recorder, || self.gauge.add());
        if reporter.listens() {
            reporter.emit(&LockEvent::CleanupStarted {
                lock: reporter.id(&request.key).of_kind(request.kind),
                operation: operation(request),
                is_unconfirmed: request.unconfirmed.is_some(),
            });
        }
    }

    /// Reports a failure that is repeated.
    fn report_retry(&self, task: &mut Cleanup, error: Option<&LockError>) {
        let reporter = &self.context.reporter;
        let request = task.request();
        let (lock, operation, tries) = (
            reporter.id(&request.key).of_kind(request.kind),
            operation(request),
            task.tries(),
        );
        reporter.emit(&LockEvent::CleanupRetried {
            lock,
            operation,
            tries,
            error,
        });
        if tries == TRIES_TO_WARN {
            self.report_failure(task, error);
        }
    }

    /// Reports a release that failed. Once, because an outage makes all of them fail again and again.
    fn report_failure(&self, task: &mut Cleanup, error: Option<&LockError>) {
        if task.report_failure() {
            let reporter = &self.context.reporter;
            let request = task.request();
            let lock = reporter.id(&request.key).of_kind(request.kind);
            reporter.emit(&LockEvent::ReleaseFailed { lock, error });
        }
    }

    /// Forgets a finished task.
    fn finish(&self, mut task: Cleanup, outcome: CleanupEnd, error: Option<&LockError>) {
        if outcome != CleanupEnd::Confirmed {
            self.report_failure(&mut task, error);
        }
        let reporter = &self.context.reporter;
        let request = task.request();
        let lock = reporter.id(&request.key).of_kind(request.kind);
        let operation = operation(request);
        reporter.guarded(PanicSource::Recorder, || self.gauge.subtract());
        if outcome != CleanupEnd::Confirmed || reporter.listens() {
            reporter.emit(&LockEvent::CleanupEnded {
                lock,
                operation,
                outcome,
                tries: task.tries(),
            });
        }
        self.context.notifications.remove(task.request().owner_id);
        if task.shutdown_waits() == ShutdownWaits::Yes {
            self.job_done();
        }
    }

    /// Counts one job less that `shutdown` waits for.
    fn job_done(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.context
                .reporter
                .waking(|| self.drained.notify_waiters());
            self.context.wake.notify_one();
        }
    }
}

/// Tasks that were taken from the queue. The drop puts those without an outcome back.
struct InFlight {
    runner: Arc<CleanupRunner>,
    lane: Lane,
    tasks: VecDeque<Cleanup>,
}

impl InFlight {
    fn new(runner: &Arc<CleanupRunner>, lane: Lane, tasks: Vec<Cleanup>) -> Self {
        let mut tasks = VecDeque::from(tasks);
        for task in &mut tasks {
            task.on_send();
        }
        Self {
            runner: Arc::clone(runner),
            lane,
            tasks,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let again_at = self.runner.context.now().plus(AFTER_PANIC);
        {
            let mut queue = self.runner.queue.lock();
            match self.lane {
                Lane::Batch => queue.batches_in_flight -= 1,
                Lane::Single => queue.singles_in_flight -= 1,
                Lane::Sequential => queue.sequential_in_flight -= 1,
            }
            for mut task in self.tasks.drain(..) {
                task.on_panic(again_at);
                queue.defer(again_at, task);
            }
        }
        self.runner.context.wake.notify_one();
    }
}

async fn run(mut in_flight: InFlight) {
    let runner = Arc::clone(&in_flight.runner);
    let context = &runner.context;
    let limit = context.command_timeout;
    let results = {
        let requests: Vec<_> = in_flight.tasks.iter().map(Cleanup::request).collect();
        context.store.release_all(&requests, limit).await
    };
    let mut progress = Progress::None;
    for result in results {
        let Some(task) = in_flight.tasks.pop_front() else {
            break;
        };
        progress = progress.max(apply_result(&runner, task, result));
    }
    let now = context.now();
    let expired = runner.queue.lock().end_send(in_flight.lane, progress, now);
    for task in expired {
        runner.finish(task, CleanupEnd::Expired, None);
    }
}

fn operation(request: &ReleaseRequest) -> CleanupOperation {
    match request.subject {
        ReleaseSubject::Guard | ReleaseSubject::ReportedGuard => CleanupOperation::Release,
        ReleaseSubject::Acquire => CleanupOperation::Cancel,
    }
}

fn end_of(reason: GiveUpReason) -> CleanupEnd {
    match reason {
        GiveUpReason::Expired => CleanupEnd::Expired,
        GiveUpReason::ClockSetBack => CleanupEnd::ClockSetBack,
        GiveUpReason::Forbidden => CleanupEnd::Forbidden,
        GiveUpReason::Refused => CleanupEnd::Refused,
    }
}

/// Applies the result of a task.
fn apply_result(
    runner: &CleanupRunner,
    mut task: Cleanup,
    result: Result<ReleaseOutcome, LockError>,
) -> Progress {
    let now = runner.context.now();
    let waited_before = task.shutdown_waits();
    let error = match result {
        Ok(outcome) => {
            let key = &task.request().key;
            let notifications = &runner.context.notifications;
            notifications.on_release(key, &outcome, now);
            if outcome.was_owner {
                let reporter = &runner.context.reporter;
                let lock = reporter.id(key).of_kind(task.request().kind);
                report_success(reporter, lock, task.request().keep);
            }
            task.on_reply(&outcome, now);
            None
        }
        Err(error) => {
            task.on_failure(error.class(), now);
            Some(error)
        }
    };
    let progress = match (task.next_step(now), &error) {
        (CleanupStep::GaveUp(GiveUpReason::Expired) | CleanupStep::WaitUntil(_), Some(_)) => {
            Progress::None
        }
        _ => Progress::Some,
    };
    match task.next_step(now) {
        CleanupStep::Finished => runner.finish(task, CleanupEnd::Confirmed, None),
        CleanupStep::GaveUp(reason) => {
            if reason == GiveUpReason::Forbidden {
                runner.count_forbidden(&task);
            }
            runner.finish(task, end_of(reason), error.as_ref());
        }
        step @ (CleanupStep::Send | CleanupStep::AwaitReply | CleanupStep::WaitUntil(_)) => {
            runner.report_retry(&mut task, error.as_ref());
            if task.shutdown_waits() != waited_before {
                runner.report_failure(&mut task, error.as_ref());
                runner.job_done();
            }
            let at = match step {
                CleanupStep::WaitUntil(at) => at,
                _ => now,
            };
            runner.defer(at, task);
        }
    }
    progress
}
