//! The keeper: one thread for each manager that renews, releases what was dropped, settles
//! what had no answer, and listens for pushes.
//!
//! It has its own runtime, and so its own connections: a blocked executor cannot stop
//! renewals, and a guard that is dropped while its runtime shuts down is still released. It
//! lives while a handle, a job or a lease lives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Backend, Ending};
use crate::clock::Moment;
use crate::dialect::Dialect;
use crate::error::{BackendErrorKind, LockError};
use crate::hold::Hold;
use crate::inbox::{Inbox, locked};
use crate::lease::Wish;
use crate::nonce::Nonce;
use crate::retry::{Backoff, Jitter};
use tracing::{debug, warn};

/// Leases in one pipeline: enough to make the round trip cheap, few enough not to hold up
/// what comes behind it.
const BATCH: usize = 128;
/// Timers stand still while the machine is suspended; a look this often finds out.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// A failed renewal is repeated after a tenth of what is left, within these bounds.
const RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(1);

/// A nonce to be ended, and how long that is worth trying.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) ending: Ending,
    /// By then everything that the nonce ever had is over by itself.
    pub(crate) give_up_at: Moment,
}

/// The way to the keeper. The thread ends when the last handle is gone and its work is done.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    /// Where the thread is. A child has none to be told anything.
    process: u32,
}

struct Shared {
    backend: Arc<dyn Backend>,
    inbox: Arc<Inbox>,
    command_timeout: Duration,
    schedule: Mutex<Schedule>,
    jobs: Mutex<VecDeque<Job>>,
    /// Jobs that are queued or under way.
    open_jobs: AtomicUsize,
    drained: Notify,
    wake: Notify,
    closing: AtomicBool,
}

#[derive(Default)]
struct Schedule {
    due: BTreeMap<(Moment, Nonce), Arc<Hold>>,
    /// When the keeper will look by itself.
    looks_at: Option<Moment>,
    /// Something was put here since the last look.
    stirred: bool,
}

impl Keeper {
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        inbox: Arc<Inbox>,
        command_timeout: Duration,
    ) -> Result<Self, LockError> {
        let failed = |error: std::io::Error| {
            LockError::caused(
                BackendErrorKind::Keeper,
                "cannot start the keeper thread",
                error,
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let shared = Arc::new(Shared {
            backend,
            inbox,
            command_timeout,
            schedule: Mutex::default(),
            jobs: Mutex::default(),
            open_jobs: AtomicUsize::new(0),
            drained: Notify::new(),
            wake: Notify::new(),
            closing: AtomicBool::new(false),
        });
        let work = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lock-keeper".into())
            .spawn(move || runtime.block_on(keep(work)))
            .map_err(failed)?;
        Ok(Self {
            shared,
            process: std::process::id(),
        })
    }

    /// Renews the lease and watches over its end, until it is released or lost.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        let Some(due) = hold.due() else {
            return;
        };
        if locked(&self.shared.schedule).put(due, hold) {
            self.shared.wake.notify_one();
        }
    }

    pub(crate) fn forget(&self, hold: &Hold) {
        locked(&self.shared.schedule).remove(hold);
    }

    pub(crate) fn end(&self, job: Job) {
        self.shared.open_jobs.fetch_add(1, Ordering::AcqRel);
        locked(&self.shared.jobs).push_back(job);
        self.shared.wake.notify_one();
    }

    /// Waits until no release or settlement is open.
    pub(crate) async fn drain(&self) {
        loop {
            let drained = self.shared.drained.notified();
            if self.shared.open_jobs.load(Ordering::Acquire) == 0 {
                return;
            }
            drained.await;
        }
    }
}

impl Shared {
    /// One job less is open.
    fn settled(&self) {
        if self.open_jobs.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drained.notify_waiters();
            self.wake.notify_one();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            return;
        }
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

impl Schedule {
    /// Whether the keeper has to be woken for it.
    fn put(&mut self, due: Moment, hold: &Arc<Hold>) -> bool {
        self.remove(hold);
        // A guard may be released between two steps of the keeper: then it stays out.
        if hold.is_released() {
            return false;
        }
        hold.set_scheduled(Some(due));
        self.due.insert((due, hold.nonce), Arc::clone(hold));
        self.stirred = true;
        self.looks_at.is_none_or(|looks_at| due < looks_at)
    }

    fn remove(&mut self, hold: &Hold) {
        if let Some(at) = hold.scheduled_at() {
            self.due.remove(&(at, hold.nonce));
            hold.set_scheduled(None);
        }
    }

    fn take_due(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let mut due = Vec::new();
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            let hold = first.remove();
            hold.set_scheduled(None);
            due.push(hold);
        }
        due
    }

    fn next_look(&mut self, now: Moment) -> Option<Duration> {
        let first = self.due.first_key_value().map(|((at, _), _)| *at);
        // Not at rest as soon as nothing is held: where short sections follow each other, each
        // would wake the keeper, which costs as much as a command.
        let expected = std::mem::take(&mut self.stirred).then_some(LONGEST_SLEEP);
        let pause = first
            .map(|at| at.since(now).min(LONGEST_SLEEP))
            .or(expected);
        self.looks_at = pause.map(|pause| now.plus(pause));
        pause
    }
}

async fn keep(shared: Arc<Shared>) {
    let listening = Arc::clone(&shared);
    let listener = tokio::spawn(async move { listening.backend.listen().await });
    let clock = shared.backend.clock();
    loop {
        let jobs = std::mem::take(&mut *locked(&shared.jobs));
        for job in jobs {
            tokio::spawn(settle(Arc::clone(&shared), job));
        }
        let now = clock.now();
        let due = locked(&shared.schedule).take_due(now);
        attend(&shared, due, now);
        let idle = shared.open_jobs.load(Ordering::Acquire) == 0;
        if shared.closing.load(Ordering::Acquire) && idle {
            break;
        }
        let pause = locked(&shared.schedule).next_look(clock.now());
        let woken = shared.wake.notified();
        match pause {
            None => woken.await,
            Some(pause) => {
                let _timed_out_or_woken = tokio::time::timeout(pause, woken).await;
            }
        }
    }
    listener.abort();
}

/// Asks each lease what it wants, and renews those that want it, many in one pipeline.
fn attend(shared: &Arc<Shared>, due: Vec<Arc<Hold>>, now: Moment) {
    let mut batch = Vec::new();
    let mut limit = shared.command_timeout;
    for hold in due {
        match hold.wish(now) {
            Wish::Renew { before } => {
                let left = before.since(now);
                if hold.key.dialect().capabilities().without_scripts {
                    // Transactions come one after another: nobody is to wait for their answers.
                    let limit = shared.command_timeout.min(left);
                    tokio::spawn(renew(Arc::clone(shared), vec![hold], limit));
                    continue;
                }
                limit = limit.min(left);
                batch.push(hold);
            }
            Wish::Look(at) => {
                locked(&shared.schedule).put(at, &hold);
            }
            Wish::Nothing if hold.is_released() => {}
            Wish::Nothing => warn!(key = %hold.key, "lock lost: its lease ended"),
        }
        if batch.len() == BATCH {
            tokio::spawn(renew(Arc::clone(shared), std::mem::take(&mut batch), limit));
            limit = shared.command_timeout;
        }
    }
    if !batch.is_empty() {
        tokio::spawn(renew(Arc::clone(shared), batch, limit));
    }
}

async fn renew(shared: Arc<Shared>, holds: Vec<Arc<Hold>>, limit: Duration) {
    let renewals: Vec<_> = holds.iter().map(|hold| hold.renewal()).collect();
    let renewing = shared.backend.renew(&renewals, limit);
    // The end of each lease is watched meanwhile: an answer may never come.
    {
        let mut schedule = locked(&shared.schedule);
        for hold in &holds {
            if let Some(deadline) = hold.deadline() {
                schedule.put(deadline, hold);
            }
        }
    }
    let answers = renewing.await;
    for (hold, answer) in holds.iter().zip(answers) {
        let pause = (hold.remaining() / 10).clamp(*RETRY.start(), *RETRY.end());
        let again_at = shared.backend.clock().now().plus(pause);
        if hold.renewal_said(answer, again_at).is_ok() {
            debug!(key = %hold.key, "lease renewed");
        }
        match hold.due() {
            Some(due) => {
                locked(&shared.schedule).put(due, hold);
            }
            None => locked(&shared.schedule).remove(hold),
        }
    }
    shared.wake.notify_one();
}

/// Whether a release would be told the same again. A companion of another type is met after the
/// key was deleted, and a right is granted by people, who take longer than a lease.
fn repeats_itself(error: &LockError) -> bool {
    match error {
        LockError::ForeignKey { .. } => true,
        LockError::Backend(error) => matches!(error.kind(), BackendErrorKind::Permission),
        _ => false,
    }
}

/// Whether a release is not sent any more, whatever may come.
fn is_unsettled(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::Unsettled)
}

/// Takes a nonce back until the server has confirmed that nothing of it can come back.
async fn settle(shared: Arc<Shared>, mut job: Job) {
    let clock = shared.backend.clock();
    let mut backoff = Backoff::new(Jitter::from_os());
    // The expiry may be what the server did not hear of.
    let may_stay_for_ever = job.ending.key.dialect() == Dialect::SetnxExpire;
    let mut is_awaited = true;
    loop {
        let answer = shared
            .backend
            .release(&job.ending, shared.command_timeout)
            .await;
        // Once behind the command on its own connection, then on the keeper's, which lives.
        job.ending.origin = None;
        let pause = match answer {
            Ok(released) => {
                let settled_at = job.ending.unsettled_until_ms;
                match settled_at.filter(|until| released.server_ms <= *until) {
                    None => break,
                    Some(until) => Duration::from_millis(until - released.server_ms + 1),
                }
            }
            Err(error) => {
                let refused = is_unsettled(&error)
                    || repeats_itself(&error) && job.ending.unsettled_until_ms.is_none();
                let is_over = clock.now() >= job.give_up_at;
                if is_over && may_stay_for_ever && is_awaited {
                    warn!(key = %job.ending.key, %error, "release goes on: the key may have no expiry");
                    shared.settled();
                    is_awaited = false;
                }
                if refused || is_over && !may_stay_for_ever {
                    warn!(key = %job.ending.key, %error, "release given up: the lease ends by itself");
                    break;
                }
                debug!(key = %job.ending.key, %error, "release failed; it is repeated");
                backoff.pause()
            }
        };
        tokio::time::sleep(pause).await;
    }
    shared.inbox.remove(job.ending.nonce);
    if is_awaited {
        shared.settled();
    }
}
