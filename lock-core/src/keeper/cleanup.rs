//! Releases and cancels in the background: of what was dropped, and of what had no answer.
//!
//! Releases of answered guards go out in batches, a few at a time, so that a burst of them keeps
//! neither the thread nor the server from renewals. A cancel whose acquire may still be on its way
//! goes by itself, first on that acquire's connection: elsewhere it could overtake it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tracing::{debug, warn};

use super::common::Common;
use crate::backend::{Ending, Released};
use crate::clock::Moment;
use crate::dialect::Dialect;
use crate::error::{BackendErrorKind, LockError};
use crate::retry::{Backoff, Jitter};
use crate::sync::Mutex;

/// Releases in one pipeline: enough to make the round trip cheap, few enough for the server to turn
/// to others in between.
const BATCH: usize = 128;
/// Batches on their way. Two would keep a near server busy; a far one takes longer to answer.
const BATCHES: usize = 4;
/// What goes by itself, and is on its way.
const SINGLES: usize = 128;
/// Transactions on their way. They come one after another on their connection, and so do the
/// renewals of their dialect: more of them would only stand before a renewal.
const IN_TURN: usize = 2;
/// After the worker panicked over it.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// A nonce to be ended, and how long that is worth trying.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ending: Ending,
    /// By then everything that the nonce ever had is over by itself.
    pub(crate) give_up_at: Moment,
}

/// What a job is known by besides what it sends.
#[derive(Clone, Copy, Debug)]
struct Terms {
    give_up_at: Moment,
    tries: u32,
    /// Whether `shutdown` waits for it.
    is_awaited: bool,
    /// The lock was held: it is the release of a guard, and no cancel.
    was_held: bool,
}

#[derive(Debug)]
struct Task {
    ending: Ending,
    terms: Terms,
}

impl Task {
    /// The expiry may be what the server did not hear of: then nothing ends by itself.
    fn may_stay_for_ever(&self) -> bool {
        self.ending.key.dialect() == Dialect::SetnxExpire
    }
}

/// All that is to be released or cancelled.
pub(super) struct Cleanup {
    common: Arc<Common>,
    queue: Mutex<Queue>,
    /// Jobs that are queued or under way.
    open: AtomicUsize,
    drained: Notify,
    /// When the leases end whose releases the server forbade.
    given_up: Mutex<Vec<Moment>>,
}

struct Queue {
    batched: VecDeque<Task>,
    singles: VecDeque<Task>,
    in_turn: VecDeque<Task>,
    later: BTreeMap<(Moment, u64), Task>,
    next_number: u64,
    batches_under_way: usize,
    singles_under_way: usize,
    in_turn_under_way: usize,
    /// After a batch that failed as a whole no other one goes out before this.
    resume_at: Option<Moment>,
    backoff: Backoff,
    /// When those that are over were last looked for.
    swept_at: Moment,
}

/// Looking through all of them takes time where there are many.
const SWEEP_EVERY: Duration = Duration::from_millis(500);

/// How tasks go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Batch,
    Single,
    /// The release of a dialect without scripts: a transaction.
    InTurn,
}

impl Queue {
    fn new(now: Moment) -> Self {
        Self {
            batched: VecDeque::new(),
            singles: VecDeque::new(),
            in_turn: VecDeque::new(),
            later: BTreeMap::new(),
            next_number: 0,
            batches_under_way: 0,
            singles_under_way: 0,
            in_turn_under_way: 0,
            resume_at: None,
            backoff: Backoff::new(Jitter::from_os()),
            swept_at: now,
        }
    }

    fn put(&mut self, task: Task, lane: Lane) {
        match lane {
            Lane::Batch => self.batched.push_back(task),
            Lane::Single => self.singles.push_back(task),
            Lane::InTurn => self.in_turn.push_back(task),
        }
    }

    fn put_off(&mut self, at: Moment, task: Task) {
        self.next_number += 1;
        self.later.insert((at, self.next_number), task);
    }

    fn take_due(&mut self, now: Moment) -> Vec<Task> {
        let mut due = Vec::new();
        while let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }

    fn take_batch(&mut self, now: Moment) -> Vec<Task> {
        let is_paused = self.resume_at.is_some_and(|at| now < at);
        if is_paused || self.batches_under_way == BATCHES {
            return Vec::new();
        }
        let count = self.batched.len().min(BATCH);
        let batch: Vec<_> = self.batched.drain(..count).collect();
        self.batches_under_way += usize::from(count > 0);
        batch
    }

    /// What goes by itself, and how.
    fn take_single(&mut self) -> Option<(Lane, Task)> {
        if self.in_turn_under_way < IN_TURN
            && let Some(task) = self.in_turn.pop_front()
        {
            self.in_turn_under_way += 1;
            return Some((Lane::InTurn, task));
        }
        if self.singles_under_way == SINGLES {
            return None;
        }
        let task = self.singles.pop_front()?;
        self.singles_under_way += 1;
        Some((Lane::Single, task))
    }

    /// When there is something to do, if nothing happens before.
    fn next_at(&self) -> Option<Moment> {
        let later = self.later.first_key_value().map(|((at, _), _)| *at);
        // While all are under way, the end of one of them wakes the thread.
        let can_resume = !self.batched.is_empty() && self.batches_under_way < BATCHES;
        let resumed = self.resume_at.filter(|_| can_resume);
        match (later, resumed) {
            (Some(later), Some(resumed)) => Some(later.min(resumed)),
            (one, other) => one.or(other),
        }
    }

    /// The server cannot be asked. Whatever is over by itself is not tried any more.
    fn take_over(&mut self, now: Moment) -> Vec<Task> {
        if now.since(self.swept_at) < SWEEP_EVERY {
            return Vec::new();
        }
        self.swept_at = now;
        let is_over = |task: &Task| now >= task.terms.give_up_at && !task.may_stay_for_ever();
        let mut over = Vec::new();
        for queue in [&mut self.batched, &mut self.singles, &mut self.in_turn] {
            // Mostly there are none, and then nothing is moved.
            if !queue.iter().any(is_over) {
                continue;
            }
            let (ended, rest) = std::mem::take(queue).into_iter().partition(is_over);
            *queue = rest;
            over.extend::<VecDeque<_>>(ended);
        }
        let ended: Vec<_> = self
            .later
            .iter()
            .filter(|(_, task)| is_over(task))
            .map(|(at, _)| *at)
            .collect();
        over.extend(ended.iter().filter_map(|at| self.later.remove(at)));
        over
    }
}

impl Cleanup {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self {
            queue: Mutex::new(Queue::new(common.now())),
            common,
            open: AtomicUsize::new(0),
            drained: Notify::new(),
            given_up: Mutex::default(),
        }
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// How many releases were forbidden whose leases may still last.
    pub(super) fn given_up(&self) -> usize {
        let now = self.common.now();
        let mut given_up = self.given_up.lock();
        given_up.retain(|ends| now < *ends);
        given_up.len()
    }

    fn give_up(&self, task: &Task) {
        let now = self.common.now();
        let mut given_up = self.given_up.lock();
        // Not at each one, so that many cost no more than each by itself.
        if given_up.len() == given_up.capacity() {
            given_up.retain(|ends| now < *ends);
        }
        given_up.push(task.terms.give_up_at);
    }

    pub(super) fn put(&self, job: Job) {
        self.open.fetch_add(1, Ordering::AcqRel);
        let Job { ending, give_up_at } = job;
        let lane = self.lane(&ending);
        let terms = Terms {
            give_up_at,
            tries: 0,
            is_awaited: true,
            was_held: ending.origin.is_none(),
        };
        self.queue.lock().put(Task { ending, terms }, lane);
        self.common.wake.notify_one();
    }

    /// Waits until nothing is open.
    pub(super) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.open() == 0 {
                return;
            }
            drained.await;
        }
    }

    /// When there is something to do, if nothing happens before.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.queue.lock().next_at()
    }

    /// Sends what may go out now.
    pub(super) fn dispatch(self: &Arc<Self>, now: Moment) {
        let due = self.queue.lock().take_due(now);
        for task in due {
            let lane = self.lane(&task.ending);
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

    fn send(self: &Arc<Self>, lane: Lane, tasks: Vec<Task>) {
        let under_way = UnderWay::new(self, lane, tasks);
        self.common.spawn(run(under_way));
    }

    fn lane(&self, ending: &Ending) -> Lane {
        if ending.origin.is_some() {
            Lane::Single
        } else if self.common.backend.batches(&ending.key) {
            Lane::Batch
        } else if ending.key.dialect().capabilities().without_scripts {
            Lane::InTurn
        } else {
            Lane::Single
        }
    }

    fn put_off(&self, at: Moment, task: Task) {
        self.queue.lock().put_off(at, task);
    }

    /// Nothing more is to be done about it.
    fn finish(&self, task: &Task) {
        self.common.inbox.remove(task.ending.nonce);
        if task.terms.is_awaited {
            self.settled();
        }
    }

    /// One less is waited for.
    fn settled(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.common
                .counters
                .waking(|| self.drained.notify_waiters());
            self.common.wake.notify_one();
        }
    }
}

/// Tasks that were taken from the queue. Those without an outcome go back, whatever happens.
struct UnderWay {
    cleanup: Arc<Cleanup>,
    lane: Lane,
    endings: VecDeque<Ending>,
    terms: VecDeque<Terms>,
}

impl UnderWay {
    fn new(cleanup: &Arc<Cleanup>, lane: Lane, tasks: Vec<Task>) -> Self {
        let (endings, terms) = tasks
            .into_iter()
            .map(|task| (task.ending, task.terms))
            .unzip();
        Self {
            cleanup: Arc::clone(cleanup),
            lane,
            endings,
            terms,
        }
    }

    fn pop(&mut self) -> Option<Task> {
        let ending = self.endings.pop_front()?;
        let terms = self.terms.pop_front()?;
        Some(Task { ending, terms })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let left: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
        let again_at = self.cleanup.common.now().plus(AFTER_PANIC);
        {
            let mut queue = self.cleanup.queue.lock();
            match self.lane {
                Lane::Batch => queue.batches_under_way -= 1,
                Lane::Single => queue.singles_under_way -= 1,
                Lane::InTurn => queue.in_turn_under_way -= 1,
            }
            for task in left {
                queue.put_off(again_at, task);
            }
        }
        self.cleanup.common.wake.notify_one();
    }
}

async fn run(mut under_way: UnderWay) {
    let cleanup = Arc::clone(&under_way.cleanup);
    let common = &cleanup.common;
    let limit = common.command_timeout;
    let outcomes = match under_way.lane {
        Lane::Batch => {
            let endings = under_way.endings.make_contiguous();
            common.backend.release_all(endings, limit).await
        }
        Lane::Single | Lane::InTurn => match under_way.endings.front() {
            Some(ending) => vec![common.backend.release(ending, limit).await],
            None => Vec::new(),
        },
    };
    let mut all_failed = true;
    for outcome in outcomes {
        let Some(task) = under_way.pop() else {
            break;
        };
        all_failed &= !conclude(&cleanup, task, outcome);
    }
    let now = common.now();
    let over = {
        let mut queue = cleanup.queue.lock();
        if all_failed {
            if under_way.lane == Lane::Batch {
                let pause = queue.backoff.pause();
                queue.resume_at = Some(now.plus(pause));
            }
            queue.take_over(now)
        } else {
            queue.backoff.reset();
            queue.resume_at = None;
            Vec::new()
        }
    };
    if !over.is_empty() {
        let count = over.len();
        common
            .counters
            .trace(|| warn!(count, "releases given up: the leases end by themselves"));
    }
    for task in over {
        cleanup.finish(&task);
    }
}

/// Whether a release would be told the same again. A companion of another type is met after the
/// key was deleted, and a right is granted by people, who take longer than a lease.
fn repeats_itself(error: &LockError) -> bool {
    match error {
        LockError::ForeignKey { .. } => true,
        error => is_forbidden(error),
    }
}

fn is_forbidden(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Permission)
}

/// Whether a release is not sent any more, whatever may come.
fn is_unsettled(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Unsettled)
}

/// What follows from an answer, or from none. Whether there was one.
fn conclude(cleanup: &Cleanup, mut task: Task, outcome: Result<Released, LockError>) -> bool {
    let common = &cleanup.common;
    let now = common.now();
    let key = task.ending.key.clone();
    let is_over = now >= task.terms.give_up_at;
    // Once behind the command on its own connection, then on the worker's, which lives.
    task.ending.origin = None;
    let error = match outcome {
        Ok(released) => {
            let unsettled = task.ending.unsettled_until_ms;
            let unsettled = unsettled.filter(|until| released.server_ms <= *until);
            if let Some(until) = unsettled.filter(|_| !is_over) {
                let pause = until.since(released.server_ms).saturating_add(1);
                let again_at = now.plus(Duration::from_millis(pause));
                let again_at = again_at.min(task.terms.give_up_at);
                cleanup.put_off(again_at, task);
            } else if released.more {
                cleanup.put_off(now, task);
            } else {
                if unsettled.is_some() {
                    common.counters.trace(|| {
                        warn!(%key, "cancel given up: the server's clock was set back");
                    });
                }
                cleanup.finish(&task);
            }
            return true;
        }
        Err(error) => error,
    };
    let is_refused =
        is_unsettled(&error) || repeats_itself(&error) && task.ending.unsettled_until_ms.is_none();
    if is_refused || is_over && !task.may_stay_for_ever() {
        common
            .counters
            .trace(|| warn!(%key, %error, "release given up: the lease ends by itself"));
        if task.terms.was_held && is_forbidden(&error) {
            cleanup.give_up(&task);
        }
        cleanup.finish(&task);
        return is_refused;
    }
    if is_over && std::mem::take(&mut task.terms.is_awaited) {
        common
            .counters
            .trace(|| warn!(%key, %error, "release goes on: the key may have no expiry"));
        cleanup.settled();
    }
    common
        .counters
        .trace(|| debug!(%key, %error, "release failed; it is repeated"));
    task.terms.tries = task.terms.tries.saturating_add(1);
    let again_at = now.plus(Backoff::after(task.terms.tries));
    cleanup.put_off(again_at, task);
    false
}
