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

use crate::backend::{Backend, Renewed};
use crate::clock::Moment;
use crate::counts::Counters;
use crate::error::{BackendErrorKind, LockError};
use crate::hold::Hold;
use crate::inbox::Inbox;
use crate::lease::Wish;
use crate::nonce::Nonce;
use crate::sync::{Mutex, Process, catch, caught};
use tracing::{debug, warn};

mod cleanup;
mod common;

use cleanup::Cleanup;
pub(crate) use cleanup::Job;
use common::Common;

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
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    /// Where the thread is. A child has none to be told anything.
    process: Process,
}

struct Shared {
    common: Arc<Common>,
    schedule: Mutex<Schedule>,
    cleanup: Arc<Cleanup>,
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
        counters: Arc<Counters>,
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
        let common = Arc::new(Common {
            backend,
            inbox,
            counters,
            command_timeout,
            wake: Notify::new(),
        });
        let shared = Arc::new(Shared {
            cleanup: Arc::new(Cleanup::new(Arc::clone(&common))),
            common,
            schedule: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let work = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lock-keeper".into())
            .spawn(move || run(&runtime, &work))
            .map_err(failed)?;
        Ok(Self {
            shared,
            process: Process::current(),
        })
    }

    /// Renews the lease and watches over its end, until it is released or lost.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        let Some(due) = hold.due() else {
            return;
        };
        let wakes = self.shared.schedule.lock().put(due, hold);
        if wakes {
            self.shared.common.wake.notify_one();
        }
    }

    pub(crate) fn forget(&self, hold: &Hold) {
        let removed = self.shared.schedule.lock().remove(hold);
        drop(removed);
    }

    pub(crate) fn end(&self, job: Job) {
        self.shared.cleanup.put(job);
    }

    /// Waits until no release or settlement is open, at most for the limit. How many are left, with
    /// those that were given up while their leases last.
    pub(crate) async fn drain(&self, limit: Duration) -> usize {
        let cleanup = &self.shared.cleanup;
        let open = match tokio::time::timeout(limit, cleanup.drained()).await {
            Ok(()) => 0,
            Err(_elapsed) => cleanup.open(),
        };
        open + cleanup.given_up()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        self.shared.closing.store(true, Ordering::Release);
        self.shared.common.wake.notify_one();
    }
}

impl Schedule {
    /// Whether the keeper has to be woken for it.
    fn put(&mut self, due: Moment, hold: &Arc<Hold>) -> bool {
        // Never the last one: the caller has another.
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

    /// The caller drops what was here, and with it the wakers of those who wait for its loss.
    fn remove(&mut self, hold: &Hold) -> Option<Arc<Hold>> {
        let at = hold.scheduled_at()?;
        hold.set_scheduled(None);
        self.due.remove(&(at, hold.nonce))
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

    fn next_look(&mut self, now: Moment, cleanup: Option<Moment>) -> Option<Duration> {
        let first = self.due.first_key_value().map(|((at, _), _)| *at);
        // Not at rest as soon as nothing is held: where short sections follow each other, each
        // would wake the keeper, which costs as much as a command.
        let expected = std::mem::take(&mut self.stirred).then_some(LONGEST_SLEEP);
        let pauses = [first, cleanup].into_iter().flatten();
        let pause = pauses
            .map(|at| at.since(now).min(LONGEST_SLEEP))
            .min()
            .or(expected);
        self.looks_at = pause.map(|pause| now.plus(pause));
        pause
    }
}

/// The thread. Goes on after a panic, with all that is scheduled and queued.
fn run(runtime: &tokio::runtime::Runtime, shared: &Arc<Shared>) {
    loop {
        match catch(|| runtime.block_on(keep(shared))) {
            Ok(()) => return,
            Err(payload) => shared
                .common
                .counters
                .panicked("the background thread", payload),
        }
        std::thread::sleep(AFTER_PANIC);
    }
}

/// Ends with the thread's work, also when that panics.
struct Listener(tokio::task::JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn keep(shared: &Arc<Shared>) {
    let _listener = Listener(tokio::spawn(listen(Arc::clone(shared))));
    let clock = shared.common.backend.clock();
    loop {
        let now = clock.now();
        let due = shared.schedule.lock().take_due(now);
        attend(shared, due, now);
        shared.cleanup.dispatch(now);
        let idle = shared.cleanup.open() == 0;
        if shared.closing.load(Ordering::Acquire) && idle {
            break;
        }
        let cleanup = shared.cleanup.next_at();
        let pause = shared.schedule.lock().next_look(clock.now(), cleanup);
        let woken = shared.common.wake.notified();
        match pause {
            None => woken.await,
            Some(pause) => {
                let _timed_out_or_woken = tokio::time::timeout(pause, woken).await;
            }
        }
    }
}

async fn listen(shared: Arc<Shared>) {
    while let Err(payload) = caught(shared.common.backend.listen()).await {
        shared
            .common
            .counters
            .panicked("the background thread", payload);
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

/// Leases that were taken out of the schedule. Whatever happens to their renewal, those that it
/// came to nothing for go back.
struct Taken {
    shared: Arc<Shared>,
    holds: Vec<Arc<Hold>>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let again_at = self.shared.common.now().plus(*RETRY.start());
        for hold in self.holds.drain(..) {
            self.shared.schedule.lock().put(again_at, &hold);
        }
    }
}

/// Asks each lease what it wants, and renews those that want it, many in one pipeline.
fn attend(shared: &Arc<Shared>, due: Vec<Arc<Hold>>, now: Moment) {
    let mut due = Taken {
        shared: Arc::clone(shared),
        holds: due,
    };
    let mut renewed = Vec::new();
    while let Some(hold) = due.holds.last() {
        let wish = hold.wish(now);
        let Some(hold) = due.holds.pop() else {
            break;
        };
        match wish {
            Wish::Renew { before } => renewed.push((before.since(now), hold)),
            Wish::Look(at) => {
                shared.schedule.lock().put(at, &hold);
            }
            Wish::Nothing if hold.is_released() => {}
            Wish::Nothing => shared
                .common
                .counters
                .trace(|| warn!(key = %hold.key, "lock lost: its lease ended")),
        }
    }
    for (limit, holds) in batches(renewed, shared.common.command_timeout) {
        let taken = Taken {
            shared: Arc::clone(shared),
            holds,
        };
        shared.common.spawn(renew(taken, limit));
    }
}

/// Puts leases together whose renewals may take about the same time: one that is nearly over would
/// else take the time from all others of its batch.
fn batches(
    mut leases: Vec<(Duration, Arc<Hold>)>,
    command_timeout: Duration,
) -> Vec<(Duration, Vec<Arc<Hold>>)> {
    for (left, _) in &mut leases {
        *left = command_timeout.min(*left);
    }
    leases.sort_by_key(|(left, _)| *left);
    let mut batches: Vec<(Duration, Vec<Arc<Hold>>)> = Vec::new();
    let mut goes_alone = false;
    for (left, hold) in leases {
        // Transactions come one after another: nobody is to wait for their answers.
        let is_alone = hold.key.dialect().capabilities().without_scripts;
        match batches.last_mut() {
            Some((limit, batch))
                if !is_alone
                    && !goes_alone
                    && batch.len() < BATCH
                    && left <= limit.saturating_mul(2) =>
            {
                batch.push(hold);
            }
            _ => batches.push((left, vec![hold])),
        }
        goes_alone = is_alone;
    }
    batches
}

async fn renew(mut taken: Taken, limit: Duration) {
    let shared = Arc::clone(&taken.shared);
    let renewals: Vec<_> = taken.holds.iter().map(|hold| hold.renewal()).collect();
    let renewing = shared.common.backend.renew(&renewals, limit);
    // The end of each lease is watched meanwhile: an answer may never come.
    for hold in &taken.holds {
        if let Some(deadline) = hold.deadline() {
            shared.schedule.lock().put(deadline, hold);
        }
    }
    let mut answers = renewing.await;
    // From the back, so that what is done leaves `taken` and what is not stays there.
    while let (Some(hold), Some(answer)) = (taken.holds.last(), answers.pop()) {
        conclude(&shared, hold, answer);
        taken.holds.pop();
    }
    shared.common.wake.notify_one();
}

fn conclude(shared: &Shared, hold: &Arc<Hold>, answer: Renewed) {
    let pause = (hold.remaining() / 10).clamp(*RETRY.start(), *RETRY.end());
    let again_at = shared.common.now().plus(pause);
    if hold.renewal_said(answer, again_at).is_ok() {
        shared
            .common
            .counters
            .trace(|| debug!(key = %hold.key, "lease renewed"));
    }
    if let Some(due) = hold.due() {
        shared.schedule.lock().put(due, hold);
    } else {
        let removed = shared.schedule.lock().remove(hold);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::backend::{Asked, Attempt, Boxed, Ending, Released, Renewal};
    use crate::clock::{Clock, ServerMs};
    use crate::dialect::{Dialect, ReleaseBy};
    use crate::key::{LockKey, LockName};
    use crate::lease::{Lease, Terms};
    use crate::options::Renew;
    use crate::ttl::Ttl;

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

    fn released() -> Released {
        Released {
            was_ours: true,
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
            _attempt: &'a mut Attempt,
            _limit: Duration,
        ) -> Boxed<'a, Result<Asked, LockError>> {
            unreachable!("nobody acquires here")
        }

        fn renew<'a>(&'a self, renewals: &'a [Renewal], _: Duration) -> Boxed<'a, Vec<Renewed>> {
            Box::pin(async move {
                let before = self.renewals.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first renewal panics");
                let held = |renewal: &Renewal| Renewed::Held {
                    token: None,
                    sent: Clock::System.now(),
                    remaining: renewal.ttl,
                };
                renewals.iter().map(held).collect()
            })
        }

        fn release<'a>(
            &'a self,
            _ending: &'a Ending,
            _limit: Duration,
        ) -> Boxed<'a, Result<Released, LockError>> {
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

        fn batches(&self, key: &LockKey) -> bool {
            !key.dialect().capabilities().without_scripts
        }

        fn release_all<'a>(
            &'a self,
            endings: &'a [Ending],
            _limit: Duration,
        ) -> Boxed<'a, Vec<Result<Released, LockError>>> {
            Box::pin(async move {
                self.batches.lock().push(endings.len());
                let before = self.releases.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first batch panics");
                endings.iter().map(|_| Ok(released())).collect()
            })
        }

        fn seems_down(&self) -> bool {
            false
        }

        fn is_connected(&self) -> bool {
            true
        }

        fn connected(&self, _until: Moment) -> Boxed<'_, Result<(), LockError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn listen(&self) -> Boxed<'_, ()> {
            Box::pin(async move {
                let before = self.listens.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first listener panics");
                std::future::pending::<()>().await;
            })
        }

        fn keeps_leases(&self) -> bool {
            false
        }
    }

    fn key() -> LockKey {
        LockKey::new("", &LockName::from("k")).unwrap()
    }

    fn ttl(ms: u64) -> Ttl {
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    fn hold(ttl_ms: u64) -> Arc<Hold> {
        let terms = Terms {
            ttl: ttl(ttl_ms),
            renew: Renew::Every(Duration::from_millis(50)),
            max_hold: None,
            margin: Duration::ZERO,
        };
        let now = Clock::System.now();
        let lease = Lease::confirmed(terms, now, terms.ttl.as_duration());
        Arc::new(Hold::new(
            key(),
            Nonce::random(),
            None,
            Clock::System,
            lease,
            Arc::default(),
            Process::current(),
        ))
    }

    fn job(origin: Option<u64>) -> Job {
        Job {
            ending: Ending {
                key: key(),
                nonce: Nonce::random(),
                ttl: ttl(60_000),
                entries: Vec::new(),
                origin,
                unsettled_until_ms: None,
                keep_until: None,
            },
            give_up_at: Clock::System.now().plus(Duration::from_secs(60)),
        }
    }

    const SOON: Duration = Duration::from_secs(10);

    fn start(backend: &Arc<Panicking>) -> (Keeper, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let timeout = Duration::from_millis(500);
        let backend: Arc<dyn Backend> = Arc::<Panicking>::clone(backend);
        let keeper = Keeper::start(backend, Arc::default(), Arc::clone(&counters), timeout);
        (keeper.unwrap(), counters)
    }

    #[tokio::test]
    async fn what_panics_is_done_again() {
        let backend = Arc::new(Panicking::default());
        let (keeper, counters) = start(&backend);
        // Long, since a panic takes its time to be printed.
        let held = hold(10_000);
        keeper.keep(&held);
        for origin in [None, Some(7), None] {
            keeper.end(job(origin));
        }
        assert_eq!(
            keeper.drain(SOON).await,
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
        let (keeper, _) = start(&backend);
        for _ in 0..BURST {
            keeper.end(job(None));
        }
        assert_eq!(keeper.drain(SOON).await, 0);
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
        let (keeper, _) = start(&backend);
        let release = ReleaseBy::WatchMulti;
        for _ in 0..BURST {
            let mut job = job(None);
            job.ending.key = key().in_dialect(Dialect::SetNxPx { release });
            keeper.end(job);
        }
        assert_eq!(keeper.drain(SOON).await, 0);
        assert_eq!(backend.releases.load(Ordering::Acquire), BURST + 1);
        assert!(backend.most_alone.load(Ordering::Acquire) <= 2);
    }

    #[test]
    fn a_lease_that_is_nearly_over_takes_no_time_from_others() {
        let ms = Duration::from_millis;
        let timeout = ms(1_000);
        let lefts = [1, 20_000, 30, 40, 2, 20_001, 900, 1_001];
        let leases = lefts.map(|left| (ms(left), hold(1_000))).to_vec();
        let batches = batches(leases, timeout);
        let shapes: Vec<_> = batches
            .iter()
            .map(|(limit, holds)| (limit.as_millis(), holds.len()))
            .collect();
        assert_eq!(shapes, [(1, 2), (30, 2), (900, 4)]);
        let many = (0..300).map(|_| (timeout, hold(1_000))).collect();
        let sizes: Vec<_> = super::batches(many, timeout)
            .iter()
            .map(|(_, holds)| holds.len())
            .collect();
        assert_eq!(sizes, [128, 128, 44]);
    }
}
