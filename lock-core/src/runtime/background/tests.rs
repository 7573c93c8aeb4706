use std::sync::atomic::AtomicUsize;

use super::renewal::batches;
use super::*;
use crate::store::{Boxed, Call, Reach, StoreStatus, StoreTraits, Together};
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest, ReleaseSubject};
use lock_protocol::clock::{Clock, Deadline, Moment, ServerMs};
use lock_protocol::dialect::{Dialect, ReleaseMethod};
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::kind::Kind;
use lock_protocol::lease::{Lease, LeaseConfig};
use lock_protocol::op::{OpKind, Outcome};
use lock_protocol::owner_id::OwnerId;
use lock_protocol::renew::Renew;
use lock_protocol::ttl::Ttl;

/// A store that panics at the first call of each kind, and works after that.
#[derive(Default)]
struct Panicking {
    /// Calls on the thread itself, outside of its tasks.
    steps: AtomicUsize,
    renewals: AtomicUsize,
    releases: AtomicUsize,
    listens: AtomicUsize,
    reporter: Arc<Reporter>,
    /// The number of releases in each batch.
    batches: Mutex<Vec<usize>>,
    /// Single releases in flight: the current and the greatest number.
    alone: AtomicUsize,
    most_alone: AtomicUsize,
}

fn released() -> ReleaseOutcome {
    ReleaseOutcome {
        was_owner: true,
        server_ms: Some(ServerMs::new(1)),
        run_id: 0,
        more: false,
    }
}

impl Panicking {
    async fn release(&self, calls: usize) {
        let before = self.releases.fetch_add(1, Ordering::AcqRel);
        assert!(before > 0, "the first release panics");
        if calls > 1 {
            return;
        }
        let alone = self.alone.fetch_add(1, Ordering::AcqRel) + 1;
        self.most_alone.fetch_max(alone, Ordering::AcqRel);
        tokio::task::yield_now().await;
        self.alone.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Store for Panicking {
    fn traits(&self) -> &StoreTraits {
        if std::thread::current().name() == Some("lock-background") {
            let before = self.steps.fetch_add(1, Ordering::AcqRel);
            assert!(before > 0, "the first step of the thread panics");
        }
        &StoreTraits::SERVER
    }

    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        _: Together,
        _: Deadline,
    ) -> Boxed<'a, ()> {
        Box::pin(async move {
            if matches!(calls[0].op.kind, OpKind::Release(_)) {
                self.batches.lock().push(calls.len());
                self.release(calls.len()).await;
            } else {
                let before = self.renewals.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first renewal panics");
            }
            for call in calls {
                call.outcome = Some(Ok(match &call.op.kind {
                    OpKind::Renew(renewal, _) => Outcome::Renewed(RenewOutcome::Held {
                        token: None,
                        sent: Clock::System.now(),
                        remaining: renewal.ttl,
                    }),
                    OpKind::Release(_) => Outcome::Released(released()),
                    other => unreachable!("no test sends {other:?}"),
                }));
            }
        })
    }

    fn joins_batches(&self, key: &LockKey) -> bool {
        !key.dialect().capabilities().works_without_scripts()
    }

    fn reach(&self) -> Reach {
        Reach::Connected
    }

    fn status(&self) -> StoreStatus {
        unreachable!("no test asks for it")
    }

    fn notifies(&self, _key: &LockKey, _limit: Duration) -> Boxed<'_, bool> {
        unreachable!("no test asks for it")
    }

    fn wait_connected(&self, _until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(supervised(&self.reporter, || {
            Box::pin(async {
                let before = self.listens.fetch_add(1, Ordering::AcqRel);
                assert!(before > 0, "the first listener panics");
                std::future::pending::<()>().await;
            })
        }))
    }
}

fn key() -> LockKey {
    LockKey::new("", &LockName::from("k")).unwrap()
}

fn ttl(ms: u64) -> Ttl {
    Ttl::new(Duration::from_millis(ms)).unwrap()
}

fn lease_config(ttl_ms: u64) -> LeaseConfig {
    LeaseConfig {
        ttl: ttl(ttl_ms),
        renew: Renew::Every(Duration::from_millis(50)),
        max_hold: None,
        margin: Duration::ZERO,
        kind: Kind::Exclusive,
    }
}

pub(super) fn held(ttl_ms: u64) -> Arc<HeldLock> {
    let lease_config = lease_config(ttl_ms);
    held_for(lease_config, lease_config.ttl.as_duration())
}

fn held_for(lease_config: LeaseConfig, remaining: Duration) -> Arc<HeldLock> {
    let lease = Lease::confirmed(lease_config, Clock::System.now(), remaining);
    Arc::new(HeldLock::new(
        &request(None),
        None,
        Clock::System,
        lease,
        Arc::default(),
        Process::current(),
    ))
}

fn request(origin: Option<u64>) -> ReleaseRequest {
    ReleaseRequest {
        key: key(),
        owner_id: OwnerId::random(),
        ttl: ttl(60_000),
        entries: Vec::new(),
        origin,
        unconfirmed: None,
        min_hold_until: None,
        subject: ReleaseSubject::Guard,
        kind: Kind::Exclusive,
        label: "".into(),
    }
}

const SOON: Duration = Duration::from_secs(10);

/// Waits until no job is open. Returns how many are left after ten seconds.
async fn drain(worker: &BackgroundWorker) -> usize {
    let _drained_or_elapsed = tokio::time::timeout(SOON, worker.drained()).await;
    worker.open()
}

fn start(store: &Arc<Panicking>) -> (BackgroundWorker, Arc<Reporter>) {
    let reporter = Arc::clone(&store.reporter);
    let timeout = Duration::from_millis(500);
    let store: Arc<dyn Store> = Arc::<Panicking>::clone(store);
    let worker = BackgroundWorker::start(store, Arc::default(), Arc::clone(&reporter), timeout);
    (worker.unwrap(), reporter)
}

#[tokio::test]
async fn panicked_work_is_repeated() {
    let store = Arc::new(Panicking::default());
    let (worker, reporter) = start(&store);
    // A long ttl, since printing a panic takes time.
    let held = held(10_000);
    worker.track(&held);
    for origin in [None, Some(7), None] {
        worker.submit(request(origin));
    }
    assert_eq!(
        drain(&worker).await,
        0,
        "each job stays counted until it is done"
    );
    let started = Clock::System.now();
    let is_repeated = |calls: &AtomicUsize| calls.load(Ordering::Acquire) >= 3;
    while !is_repeated(&store.renewals) || store.listens.load(Ordering::Acquire) < 2 {
        assert!(
            Clock::System.now().since(started) < SOON,
            "panicked work is not repeated"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!held.is_lost());
    assert_eq!(reporter.read().panics, 4);
}

/// Waits until the thread has planned its next wakeup.
async fn planned_wakeup(worker: &BackgroundWorker) -> u64 {
    let started = Clock::System.now();
    loop {
        let nanos = worker.state.next_wakeup.load(Ordering::SeqCst);
        if nanos != NOT_PLANNED {
            return nanos;
        }
        assert!(Clock::System.now().since(started) < SOON);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn short_sections_never_enter_the_schedule() {
    let store = Arc::new(Panicking::default());
    store.steps.store(1, Ordering::Release);
    let (worker, _) = start(&store);
    let first = held(600_000);
    let first_due = Clock::System.now().plus(Duration::from_millis(40));
    worker.state.young.put(first_due.plus(SOON), &first);
    worker.state.wake_for(first_due.plus(SOON));
    let planned = planned_wakeup(&worker).await;
    let steps = store.steps.load(Ordering::Acquire);
    for _ in 0..1_000 {
        let held = held(600_000);
        worker.state.young.put(first_due.plus(SOON * 2), &held);
        worker.state.wake_for(first_due.plus(SOON * 2));
        assert_eq!(held.scheduled_at(), None);
        held.release();
        worker.untrack(&held);
        assert_eq!((Arc::strong_count(&held), held.young_slot()), (1, None));
    }
    assert_eq!(worker.state.next_wakeup.load(Ordering::SeqCst), planned);
    assert_eq!(store.steps.load(Ordering::Acquire), steps, "it was woken");
}

/// A released lock may be on its way from the young locks into the schedule.
#[test]
fn released_lock_does_not_stay_in_the_schedule() {
    let mut schedule = Schedule::default();
    let held = held(1_000);
    held.release();
    schedule.put(Moment::from_millis(1), &held);
    assert_eq!((schedule.first(), held.scheduled_at()), (None, None));
}

#[tokio::test]
async fn burst_of_releases_goes_out_in_bounded_batches() {
    const BURST: usize = 5_000;
    let store = Arc::new(Panicking::default());
    store.releases.store(1, Ordering::Release);
    let (worker, _) = start(&store);
    for _ in 0..BURST {
        worker.submit(request(None));
    }
    assert_eq!(drain(&worker).await, 0);
    let batches = std::mem::take(&mut *store.batches.lock());
    assert_eq!(batches.iter().sum::<usize>(), BURST);
    assert!(batches.iter().all(|count| *count <= 128), "{batches:?}");
}

/// Transactions run one after another on their connection, so a renewal waits for all that were
/// sent before it.
#[tokio::test]
async fn burst_of_transactions_does_not_delay_renewals() {
    const BURST: usize = 1_000;
    let store = Arc::new(Panicking::default());
    store.releases.store(1, Ordering::Release);
    let (worker, _) = start(&store);
    let release = ReleaseMethod::WatchMulti;
    for _ in 0..BURST {
        let mut request = request(None);
        request.key = key().in_dialect(Dialect::SetNxPx { release });
        worker.submit(request);
    }
    assert_eq!(drain(&worker).await, 0);
    assert_eq!(store.releases.load(Ordering::Acquire), BURST + 1);
    assert!(store.most_alone.load(Ordering::Acquire) <= 2);
}

#[test]
fn lease_that_ends_soon_does_not_limit_other_renewals() {
    let ms = Duration::from_millis;
    let timeout = ms(1_000);
    let lefts = [1, 20_000, 30, 40, 2, 20_001, 900, 1_001];
    let leases = lefts
        .map(|left| (timeout.min(ms(left)), held(1_000)))
        .to_vec();
    let batches = batches(leases);
    let shapes: Vec<_> = batches
        .iter()
        .map(|(limit, locks)| (limit.as_millis(), locks.len()))
        .collect();
    assert_eq!(shapes, [(1, 2), (30, 2), (900, 4)]);
    let many = (0..300).map(|_| (timeout, held(1_000))).collect();
    let sizes: Vec<_> = super::renewal::batches(many)
        .iter()
        .map(|(_, locks)| locks.len())
        .collect();
    assert_eq!(sizes, [128, 128, 44]);
}

/// Renews leases that are about to end, while other threads look whether they have.
#[test]
fn lock_that_was_seen_as_lost_stays_lost() {
    const ROUNDS: usize = 50;
    // The client counts 3 ms of it.
    let remaining = Duration::from_millis(5);
    let nearly = Duration::from_micros(20);
    for _ in 0..ROUNDS {
        let held = held_for(lease_config(1_000), remaining);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !held.is_lost() {}
                    for _ in 0..100 {
                        assert!(held.is_lost() && held.remaining().is_zero());
                    }
                });
            }
            for _ in 0..10 {
                let end = held.deadline().unwrap();
                while Clock::System.now().plus(nearly) < end {}
                let renewal = RenewOutcome::Held {
                    token: None,
                    sent: Clock::System.now(),
                    remaining,
                };
                if held.apply_renewal(Ok(renewal)).is_err() {
                    break;
                }
            }
        });
    }
}
