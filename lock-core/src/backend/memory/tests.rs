use super::*;
use crate::manager::LockManager;
use crate::protocol::key::LockName;
use crate::protocol::owner_id::{OwnerId, ShortId};
use crate::protocol::ttl::Ttl;

fn lease_config(renew: Renew) -> LeaseConfig {
    LeaseConfig {
        ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
        renew,
        max_hold: None,
        margin: Duration::ZERO,
    }
}

fn release_request(
    key: &LockKey,
    owner_id: OwnerId,
    min_hold_until: Option<Moment>,
) -> ReleaseRequest {
    ReleaseRequest {
        key: key.clone(),
        owner_id,
        ttl: lease_config(Renew::Auto).ttl,
        entries: Vec::new(),
        origin: None,
        unconfirmed_until_ms: None,
        min_hold_until,
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

    fn poll_all(&self) {}
}

fn key(number: usize) -> LockKey {
    LockKey::new("", &LockName::from(format!("k{number}"))).unwrap()
}

fn take(memory: &MemoryBackend, key: &LockKey, renew: Renew) -> OwnerId {
    let mut acquisition = Acquisition::new(key.clone(), lease_config(renew), "".into(), None);
    assert!(matches!(
        memory.acquire_now(&mut acquisition),
        Ok(AcquireOutcome::Held { .. })
    ));
    acquisition.owner_id
}

fn size(memory: &MemoryBackend) -> (usize, usize, usize) {
    let state = memory.state.lock();
    (state.locks.len(), state.ends.len(), state.locks.capacity())
}

/// Released under a shortest hold, or forgotten: nobody may ever ask for them again.
#[tokio::test(start_paused = true)]
async fn locks_that_end_by_themselves_are_removed() {
    const LOCKS: usize = 20_000;
    let memory = MemoryBackend::new(Arc::new(NoWaiters), Duration::ZERO);
    for number in 0..LOCKS {
        let (key, now) = (key(number), Clock::Tokio.now());
        if number % 2 == 0 {
            let owner_id = take(&memory, &key, Renew::Auto);
            let min_hold_until = Some(now.plus(Duration::from_millis(500)));
            memory.release_now(&release_request(&key, owner_id, min_hold_until));
        } else {
            take(&memory, &key, Renew::Never);
        }
    }
    assert_eq!(size(&memory).0, LOCKS);
    tokio::time::advance(Duration::from_secs(2)).await;
    // As other locks come and go.
    for number in 0..LOCKS / 8 {
        let key = key(LOCKS + number % 3);
        let owner_id = take(&memory, &key, Renew::Auto);
        memory.release_now(&release_request(&key, owner_id, None));
    }
    let (locks, ends, capacity) = size(&memory);
    assert_eq!((locks, ends), (0, 0));
    assert!(capacity < LOCKS / 4, "{capacity}");
}

#[tokio::test(start_paused = true)]
async fn locks_that_live_with_their_guards_are_not_swept() {
    let memory = MemoryBackend::new(Arc::new(NoWaiters), Duration::ZERO);
    let held = take(&memory, &key(1), Renew::Auto);
    assert_eq!(size(&memory).1, 0, "it has no end");
    for _ in 0..100 {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        take(&memory, &key(2), Renew::Never);
    }
    assert!(
        memory
            .release_now(&release_request(&key(1), held, None))
            .was_owner
    );
}

/// Waiters that gave up without a word stand there until their time is over; whoever tries
/// passes all of them in one call.
#[tokio::test(start_paused = true)]
async fn one_call_passes_any_number_of_dead_waiters() {
    let locks = LockManager::in_memory();
    let held = locks.lock("a").acquire().await.unwrap();
    for _ in 0..350 {
        let waiting = locks.lock("a").wait(Duration::from_secs(1)).acquire();
        let mut waiting = Box::pin(waiting);
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(Future::poll(waiting.as_mut(), cx)));
        assert!(polled.await.is_pending());
        std::mem::forget(waiting);
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    held.release().await.unwrap();
    let got = locks.lock("a").try_acquire().await.unwrap();
    got.expect("nobody lives there").release().await.unwrap();
}
