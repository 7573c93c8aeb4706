use super::*;
use crate::manager::LockManager;
use lock_protocol::cleanup::{Keep, ReleaseSubject};
use lock_protocol::key::LockName;
use lock_protocol::kind::Kind;
use lock_protocol::owner_id::{OwnerId, ShortId};
use lock_protocol::ttl::Ttl;

fn lease_config(renew: Renew) -> LeaseConfig {
    LeaseConfig {
        ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
        renew,
        max_hold: None,
        margin: Duration::ZERO,
        kind: Kind::Exclusive,
    }
}

fn release_request(key: &LockKey, owner_id: OwnerId, keep: Keep) -> ReleaseRequest {
    ReleaseRequest {
        key: key.clone(),
        owner_id,
        ttl: lease_config(Renew::Auto).ttl,
        entries: Vec::new(),
        origin: None,
        unconfirmed: None,
        keep,
        subject: ReleaseSubject::Guard,
        kind: Kind::Exclusive,
        label: "".into(),
    }
}

struct NoWaiters;

impl NotificationSink for NoWaiters {
    fn notify(&self, _: OwnerId, _: Notification) -> bool {
        false
    }

    fn notify_by_short_id(&self, _: ShortId, _: Notification) -> bool {
        false
    }

    fn notify_released(&self, _key: &str) -> bool {
        false
    }

    fn poll_all(&self) {}

    fn renew_all(&self) {}
}

fn key(number: usize) -> LockKey {
    LockKey::new("", &LockName::from(format!("k{number}"))).unwrap()
}

fn acquire(memory: &MemoryStore, key: &LockKey, renew: Renew) -> OwnerId {
    let owner_id = OwnerId::random();
    let mut sent = SentAcquires::new(owner_id, key.clone(), lease_config(renew), "".into(), None);
    let outcome = memory.acquire_now(&mut sent);
    assert!(matches!(outcome, AcquireOutcome::Held { .. }));
    owner_id
}

fn size(memory: &MemoryStore) -> (usize, usize, usize) {
    let state = memory.state.lock();
    (state.locks.len(), state.ends.len(), state.locks.capacity())
}

/// Released with `min_hold`, or never released: no later call may name these keys.
#[tokio::test(start_paused = true)]
async fn expired_locks_are_removed() {
    const LOCKS: usize = 20_000;
    let memory = MemoryStore::new(Arc::new(NoWaiters), Duration::ZERO);
    for number in 0..LOCKS {
        let (key, now) = (key(number), Clock::Tokio.now());
        if number % 2 == 0 {
            let owner_id = acquire(&memory, &key, Renew::Auto);
            let keep = Keep::Until(now.plus(Duration::from_millis(500)));
            memory.release(&release_request(&key, owner_id, keep));
        } else {
            acquire(&memory, &key, Renew::Never);
        }
    }
    assert_eq!(size(&memory).0, LOCKS);
    tokio::time::advance(Duration::from_secs(2)).await;
    // Commands on other locks remove the expired ones.
    for number in 0..LOCKS / 8 {
        let key = key(LOCKS + number % 3);
        let owner_id = acquire(&memory, &key, Renew::Auto);
        memory.release(&release_request(&key, owner_id, Keep::Nothing));
    }
    let (locks, ends, capacity) = size(&memory);
    assert_eq!((locks, ends), (0, 0));
    assert!(capacity < LOCKS / 4, "{capacity}");
}

#[tokio::test(start_paused = true)]
async fn renewed_locks_are_not_swept() {
    let memory = MemoryStore::new(Arc::new(NoWaiters), Duration::ZERO);
    let held = acquire(&memory, &key(1), Renew::Auto);
    assert_eq!(size(&memory).1, 0, "a renewed lock never expires by itself");
    for _ in 0..100 {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        acquire(&memory, &key(2), Renew::Never);
    }
    assert!(
        memory
            .release(&release_request(&key(1), held, Keep::Nothing))
            .was_owner
    );
}

/// Waiters that disappeared without a cancel stay in the queue until they expire. One attempt
/// passes all of them.
#[tokio::test(start_paused = true)]
async fn one_call_passes_any_number_of_dead_waiters() {
    let locks = LockManager::in_memory();
    let held = locks.lock("a").acquire().await.unwrap();
    for _ in 0..350 {
        let waiter = locks.lock("a").wait(Duration::from_secs(1)).acquire();
        let mut waiter = Box::pin(waiter);
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(Future::poll(waiter.as_mut(), cx)));
        assert!(polled.await.is_pending());
        std::mem::forget(waiter);
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    held.release().await.unwrap();
    let acquired = locks.lock("a").try_acquire().await.unwrap();
    let acquired = acquired.expect("all waiters ahead are dead");
    acquired.release().await.unwrap();
}

/// The lease of the holder, whose clock is the real one, has not ended when a minute of the paused clock has passed.
#[test]
fn runtime_with_a_paused_clock_gets_no_lock_that_another_may_hold() {
    let runtime = |is_paused| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(is_paused);
        builder.build().unwrap()
    };
    let locks = LockManager::in_memory();
    let request = || {
        let request = locks.lock("job").ttl(Duration::from_secs(30));
        request.renew(Renew::Never).wait(Duration::from_secs(60))
    };
    let (real, paused) = (runtime(false), runtime(true));
    let held = real.block_on(request().acquire()).unwrap();
    let refused = paused.block_on(request().acquire()).unwrap_err();
    assert!(
        matches!(&refused, LockError::Backend(it) if it.kind() == BackendErrorKind::Unsupported),
        "{refused}"
    );
    assert!(!held.is_lost());
    real.block_on(held.release()).unwrap();

    let alone = LockManager::in_memory();
    let held = paused.block_on(alone.lock("job").acquire()).unwrap();
    assert!(real.block_on(alone.lock("job").acquire()).is_err());
    paused.block_on(held.release()).unwrap();
}
