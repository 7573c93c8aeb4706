use std::sync::atomic::AtomicUsize;

use super::*;
use crate::runtime::held_lock::tests::{held, key, request};
use crate::store::{Boxed, Call, Reach, StoreStatus, StoreTraits, Together};
use crate::sync::Mutex;
use lock_protocol::cleanup::ReleaseOutcome;
use lock_protocol::clock::{Deadline, ServerMs};
use lock_protocol::dialect::{Dialect, ReleaseMethod};
use lock_protocol::key::LockKey;
use lock_protocol::op::{OpKind, Outcome};

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
        notified_others: false,
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
    let worker = BackgroundWorker::start(
        store,
        Arc::default(),
        Arc::clone(&reporter),
        timeout,
        FirstUse::Connected,
    );
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

/// Returns the limits and the sizes of the batches in which leases with these limits are renewed.
fn batches(limits: impl IntoIterator<Item = Duration>) -> Vec<(Duration, usize)> {
    let deadlines = Arc::new(Deadlines::new(Clock::System, Arc::default()));
    let mut limits = Vec::from_iter(limits);
    for _ in &limits {
        deadlines.put(Moment::from_millis(1), &held(1_000));
    }
    let taken = deadlines.take_due(Moment::from_millis(1));
    let mut leases = taken.filter_map(|_, _| limits.pop());
    leases.sort_descending();
    std::iter::from_fn(|| next_batch(&mut leases))
        .map(|(limit, batch)| (limit, batch.iter().count()))
        .collect()
}

#[test]
fn lease_that_ends_soon_does_not_limit_other_renewals() {
    let ms = Duration::from_millis;
    let timeout = ms(1_000);
    let lefts = [1, 20_000, 30, 40, 2, 20_001, 900, 1_001];
    assert_eq!(
        batches(lefts.map(|left| timeout.min(ms(left)))),
        [(ms(1), 2), (ms(30), 2), (ms(900), 4)]
    );
    let sizes = batches([timeout; 300]).into_iter().map(|(_, size)| size);
    assert_eq!(sizes.collect::<Vec<_>>(), [128, 128, 44]);
}

#[tokio::test]
async fn timer_ends_at_the_moment() {
    let timer = Timer::new(Clock::System);
    for ms in [20, 1, 0] {
        let at = Clock::System.now().plus(Duration::from_millis(ms));
        // An earlier sleep that was dropped leaves nothing behind.
        let dropped = timer.sleep_until(at.minus(Duration::from_millis(5)));
        let _elapsed = tokio::time::timeout(Duration::ZERO, dropped).await;
        timer.sleep_until(at).await;
        assert!(Clock::System.now() >= at);
    }
    let at = Clock::System.now().plus(Duration::from_millis(20));
    timer.sleep_in_parts(at).await;
    assert!(Clock::System.now() >= at);
    timer.sleep_until(Moment::from_nanos(0)).await;
}
