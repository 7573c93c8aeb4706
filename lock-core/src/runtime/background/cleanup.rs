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
use tracing::{debug, warn};

use super::context::WorkerContext;
use crate::backend::{ReleaseOutcome, ReleaseRequest};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::backoff::Backoff;
use crate::protocol::clock::Moment;
use crate::sync::Mutex;

mod queue;

use self::queue::{CleanupQueue, CleanupTask, JobState, Lane};

/// The pause before a task is repeated after a panic.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// A release or cancel, and how long it is worth trying.
#[derive(Debug)]
pub(crate) struct CleanupJob {
    pub(crate) release_request: ReleaseRequest,
    /// By then, every lease and entry of the owner id has expired.
    pub(crate) give_up_at: Moment,
}

/// All open releases and cancels.
pub(super) struct Cleanup {
    context: Arc<WorkerContext>,
    queue: Mutex<CleanupQueue>,
    /// The number of jobs that are queued or in flight.
    open: AtomicUsize,
    drained: Notify,
    /// The ends of the leases whose releases the server has forbidden.
    given_up: Mutex<Vec<Moment>>,
}

impl Cleanup {
    pub(super) fn new(context: Arc<WorkerContext>) -> Self {
        Self {
            queue: Mutex::new(CleanupQueue::new(context.now())),
            context,
            open: AtomicUsize::new(0),
            drained: Notify::new(),
            given_up: Mutex::default(),
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

    fn give_up(&self, task: &CleanupTask) {
        let now = self.context.now();
        let mut given_up = self.given_up.lock();
        // Only when the vector is full, so that the cost per lock does not grow with their number.
        if given_up.len() == given_up.capacity() {
            given_up.retain(|ends| now < *ends);
        }
        given_up.push(task.state.give_up_at);
    }

    pub(super) fn put(&self, job: CleanupJob) {
        self.open.fetch_add(1, Ordering::AcqRel);
        let CleanupJob {
            release_request,
            give_up_at,
        } = job;
        let lane = self.lane(&release_request);
        let state = JobState {
            give_up_at,
            tries: 0,
            blocks_shutdown: true,
            was_held: release_request.origin.is_none(),
        };
        self.queue.lock().put(
            CleanupTask {
                release_request,
                state,
            },
            lane,
        );
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
            let lane = self.lane(&task.release_request);
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

    fn send(self: &Arc<Self>, lane: Lane, tasks: Vec<CleanupTask>) {
        let in_flight = InFlight::new(self, lane, tasks);
        self.context.spawn(run(in_flight));
    }

    fn lane(&self, release_request: &ReleaseRequest) -> Lane {
        if release_request.origin.is_some() {
            Lane::Single
        } else if self.context.backend.can_batch_release(&release_request.key) {
            Lane::Batch
        } else if release_request.key.dialect().capabilities().without_scripts {
            Lane::Sequential
        } else {
            Lane::Single
        }
    }

    fn defer(&self, at: Moment, task: CleanupTask) {
        self.queue.lock().defer(at, task);
    }

    /// Forgets a finished task.
    fn finish(&self, task: &CleanupTask) {
        self.context
            .notifications
            .remove(task.release_request.owner_id);
        if task.state.blocks_shutdown {
            self.job_done();
        }
    }

    /// Counts one job less that `shutdown` waits for.
    fn job_done(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.context
                .counters
                .waking(|| self.drained.notify_waiters());
            self.context.wake.notify_one();
        }
    }
}

/// Tasks that were taken from the queue. The drop puts those without an outcome back.
struct InFlight {
    cleanup: Arc<Cleanup>,
    lane: Lane,
    release_requests: VecDeque<ReleaseRequest>,
    state: VecDeque<JobState>,
}

impl InFlight {
    fn new(cleanup: &Arc<Cleanup>, lane: Lane, tasks: Vec<CleanupTask>) -> Self {
        let (release_requests, state) = tasks
            .into_iter()
            .map(|task| (task.release_request, task.state))
            .unzip();
        Self {
            cleanup: Arc::clone(cleanup),
            lane,
            release_requests,
            state,
        }
    }

    fn pop(&mut self) -> Option<CleanupTask> {
        let release_request = self.release_requests.pop_front()?;
        let state = self.state.pop_front()?;
        Some(CleanupTask {
            release_request,
            state,
        })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
        let again_at = self.cleanup.context.now().plus(AFTER_PANIC);
        {
            let mut queue = self.cleanup.queue.lock();
            match self.lane {
                Lane::Batch => queue.batches_in_flight -= 1,
                Lane::Single => queue.singles_in_flight -= 1,
                Lane::Sequential => queue.sequential_in_flight -= 1,
            }
            for task in left {
                queue.defer(again_at, task);
            }
        }
        self.cleanup.context.wake.notify_one();
    }
}

async fn run(mut in_flight: InFlight) {
    let cleanup = Arc::clone(&in_flight.cleanup);
    let context = &cleanup.context;
    let limit = context.command_timeout;
    let outcomes = match in_flight.lane {
        Lane::Batch => {
            let release_requests = in_flight.release_requests.make_contiguous();
            context.backend.release_all(release_requests, limit).await
        }
        Lane::Single | Lane::Sequential => match in_flight.release_requests.front() {
            Some(release_request) => vec![context.backend.release(release_request, limit).await],
            None => Vec::new(),
        },
    };
    let mut all_failed = true;
    for outcome in outcomes {
        let Some(task) = in_flight.pop() else {
            break;
        };
        all_failed &= !apply_outcome(&cleanup, task, outcome);
    }
    let now = context.now();
    let expired = {
        let mut queue = cleanup.queue.lock();
        if all_failed {
            if in_flight.lane == Lane::Batch {
                let pause = queue.backoff.pause();
                queue.resume_at = Some(now.plus(pause));
            }
            queue.take_expired(now)
        } else {
            queue.backoff.reset();
            queue.resume_at = None;
            Vec::new()
        }
    };
    if !expired.is_empty() {
        let count = expired.len();
        context
            .counters
            .trace(|| warn!(count, "gave up releases; the leases expire by themselves"));
    }
    for task in expired {
        cleanup.finish(&task);
    }
}

/// Returns whether another attempt would fail in the same way. A companion key of another type is
/// only found after the key was deleted. A missing permission is granted by people, who take longer
/// than a lease lasts.
fn is_permanent(error: &LockError) -> bool {
    match error {
        LockError::ForeignKey { .. } => true,
        error => is_forbidden(error),
    }
}

fn is_forbidden(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Permission)
}

/// Returns whether the release must not be sent again.
fn is_release_unconfirmed(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::ReleaseUnconfirmed)
}

/// Applies the outcome of a task. Returns false if the attempt failed for a temporary reason.
fn apply_outcome(
    cleanup: &Cleanup,
    mut task: CleanupTask,
    outcome: Result<ReleaseOutcome, LockError>,
) -> bool {
    let context = &cleanup.context;
    let now = context.now();
    let key = task.release_request.key.clone();
    let has_expired = now >= task.state.give_up_at;
    // The first copy goes behind the acquire on its connection; later ones use the worker's own
    // connection, which still works.
    task.release_request.origin = None;
    let error = match outcome {
        Ok(released) => {
            let unconfirmed = task.release_request.unconfirmed_until_ms;
            let unconfirmed = unconfirmed.filter(|until| released.server_ms <= *until);
            if let Some(until) = unconfirmed.filter(|_| !has_expired) {
                let pause = until.since(released.server_ms).saturating_add(1);
                let again_at = now.plus(Duration::from_millis(pause));
                let again_at = again_at.min(task.state.give_up_at);
                cleanup.defer(again_at, task);
            } else if released.more {
                cleanup.defer(now, task);
            } else {
                if unconfirmed.is_some() {
                    context.counters.trace(|| {
                        warn!(%key, "gave up a cancel: the server's clock was set back");
                    });
                }
                cleanup.finish(&task);
            }
            return true;
        }
        Err(error) => error,
    };
    let is_refused = is_release_unconfirmed(&error)
        || is_permanent(&error) && task.release_request.unconfirmed_until_ms.is_none();
    if is_refused || has_expired && !task.may_never_expire() {
        context
            .counters
            .trace(|| warn!(%key, %error, "gave up a release; the lease expires by itself"));
        if task.state.was_held && is_forbidden(&error) {
            cleanup.give_up(&task);
        }
        cleanup.finish(&task);
        return is_refused;
    }
    if has_expired && std::mem::take(&mut task.state.blocks_shutdown) {
        context
            .counters
            .trace(|| warn!(%key, %error, "still retrying a release: the key may have no expiry"));
        cleanup.job_done();
    }
    context
        .counters
        .trace(|| debug!(%key, %error, "release failed; it will be repeated"));
    task.state.tries = task.state.tries.saturating_add(1);
    let again_at = now.plus(Backoff::after(task.state.tries));
    cleanup.defer(again_at, task);
    false
}
