use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::*;
use lock_protocol::cleanup::ReleaseSubject;
use lock_protocol::dialect::Dialect;
use lock_protocol::key::LockName;
use lock_protocol::renew::Renew;
use lock_protocol::ttl::Ttl;

pub(in crate::runtime) fn key() -> LockKey {
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

pub(in crate::runtime) fn held(ttl_ms: u64) -> Arc<HeldLock> {
    let lease_config = lease_config(ttl_ms);
    held_for(lease_config, lease_config.ttl.as_duration())
}

/// Returns a lock in this dialect.
pub(in crate::runtime) fn held_in(dialect: Dialect) -> Arc<HeldLock> {
    let lease_config = lease_config(60_000);
    let mut request = request(None);
    request.key = request.key.in_dialect(dialect);
    make(&request, lease_config, lease_config.ttl.as_duration())
}

fn held_for(lease_config: LeaseConfig, remaining: Duration) -> Arc<HeldLock> {
    make(&request(None), lease_config, remaining)
}

fn make(release: &ReleaseRequest, lease_config: LeaseConfig, remaining: Duration) -> Arc<HeldLock> {
    let lease = Lease::confirmed(lease_config, Clock::System.now(), remaining);
    Arc::new(HeldLock::new(
        release,
        None,
        Clock::System,
        lease,
        Arc::default(),
        Process::current(),
    ))
}

pub(in crate::runtime) fn request(origin: Option<u64>) -> ReleaseRequest {
    ReleaseRequest {
        key: key(),
        owner_id: OwnerId::random(),
        ttl: ttl(60_000),
        entries: Vec::new(),
        origin,
        unconfirmed: None,
        keep: lock_protocol::cleanup::Keep::Nothing,
        subject: ReleaseSubject::Guard,
        kind: Kind::Exclusive,
        label: "".into(),
    }
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

/// The renewal waits for the mutex while a reader sees the end of the lease.
#[test]
fn renewal_that_comes_after_a_reader_saw_the_loss_does_not_renew() {
    let remaining = Duration::from_millis(30);
    let held = held_for(lease_config(1_000), remaining);
    let end = held.deadline().unwrap();
    std::thread::scope(|scope| {
        let reader = held.state.lock();
        let renewing = scope.spawn(|| {
            held.apply_renewal(Ok(RenewOutcome::Held {
                token: None,
                sent: Clock::System.now(),
                remaining: Duration::from_secs(1),
            }))
        });
        std::thread::sleep(end.since(Clock::System.now()));
        assert!(reader.lease.is_lost(Clock::System.now()));
        drop(reader);
        assert!(renewing.join().unwrap().is_err());
    });
    assert!(held.is_lost());
}

/// Counts how often it wakes.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wakes {
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A failed renewal can bring the risk forward, so it wakes those that wait for the risk, and no other.
#[test]
fn failed_renewal_wakes_only_listeners_of_the_risk() {
    let minute = Duration::from_secs(60);
    let held = held_for(
        LeaseConfig {
            renew: Renew::Every(minute / 2),
            ..lease_config(60_000)
        },
        minute,
    );
    let wakes = [Awaited::Loss, Awaited::Risk].map(|_| Arc::<Wakes>::default());
    let mut ids = [None; 2];
    let mut listen = || {
        for (at, awaited) in [Awaited::Loss, Awaited::Risk].into_iter().enumerate() {
            let task = Waker::from(Arc::clone(&wakes[at]));
            let cx = Context::from_waker(&task);
            assert!(held.poll_for(awaited, &cx, &mut ids[at]).is_pending());
        }
    };
    let woken_since = || [wakes[0].take(), wakes[1].take()];
    listen();
    let overdue = held.at_risk_from();
    let _failed = held.apply_renewal(Err(LockError::NoRuntime));
    assert!(held.at_risk_from() < overdue);
    assert_eq!(woken_since(), [0, 1]);
    listen();
    let _failed = held.apply_renewal(Err(LockError::NoRuntime));
    assert_eq!(woken_since(), [0, 0], "the risk comes no earlier");
    let renewal = RenewOutcome::Held {
        token: None,
        sent: Clock::System.now(),
        remaining: minute,
    };
    held.apply_renewal(Ok(renewal)).unwrap();
    assert_eq!(woken_since(), [0, 0], "the risk comes later");
    let removed = RenewOutcome::NotOwner(LossReason::Removed);
    let _lost = held.apply_renewal(Ok(removed));
    assert_eq!(woken_since(), [1, 1]);
}

#[test]
fn listener_that_is_dropped_leaves_no_waker() {
    let held = held(60_000);
    let waker = Waker::from(Arc::<Wakes>::default());
    let mut id = None;
    let cx = Context::from_waker(&waker);
    assert!(held.poll_for(Awaited::Risk, &cx, &mut id).is_pending());
    held.forget_listener(id.unwrap());
    assert!(held.state.lock().listeners.is_empty());
}
