//! Durations that are constants.

use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};

const TTL: Duration = Duration::from_secs(2);

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

#[distributed_lock(name = "c", ttl = TTL, wait = minutes(1), manager = locks)]
async fn constant(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

struct Short;

trait Lease {
    const TTL: Duration;
}

impl Lease for Short {
    const TTL: Duration = Duration::from_millis(100);
}

impl Short {
    const WAIT: Duration = Duration::from_millis(1);

    #[distributed_lock(name = "c", ttl = <Self as Lease>::TTL, wait = Self::WAIT, manager = locks)]
    async fn own(&self, locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }
}

#[distributed_lock(name = "c", ttl = L::TTL, wait = Duration::from_millis(W), manager = locks)]
async fn generic<L: Lease, const W: u64>(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

struct Timed<const SECONDS: u32, Item>(std::marker::PhantomData<fn() -> Item>);

impl<const SECONDS: u32, Item> Timed<SECONDS, Item> {
    #[distributed_lock(
        name = "c",
        ttl = Duration::from_secs(SECONDS as u64),
        renew = const { Duration::from_millis(SECONDS as u64) },
        max_hold = Duration::from_secs(1).saturating_mul(SECONDS + 1),
        wait = Duration::from_millis(size_of::<Item>() as u64),
        min_hold = TTL.saturating_sub(TTL),
        manager = locks,
        bind = held,
    )]
    async fn lease(&self, locks: &LockManager) -> Result<Duration, LockError> {
        Ok(held.remaining())
    }

    #[distributed_lock(
        name = "c",
        ttl = const { Duration::from_secs(SECONDS as u64) },
        manager = locks,
        bind = held,
    )]
    async fn block(locks: &LockManager) -> Result<Duration, LockError> {
        Ok(held.remaining())
    }
}

#[tokio::test(start_paused = true)]
async fn durations_may_depend_on_the_generics_of_the_impl() {
    let locks = LockManager::in_memory();
    let timed = Timed::<20, u64>(std::marker::PhantomData);
    let lease = timed.lease(&locks).await.expect("free");
    assert_eq!(
        lease,
        Duration::from_secs(21),
        "until the end of `max_hold`"
    );
    let lease = Timed::<20, u64>::block(&locks).await.expect("free");
    assert_eq!(lease, Duration::from_secs(20));
}

#[tokio::test]
async fn durations_may_be_constants() {
    let locks = LockManager::in_memory();
    constant(&locks).await.expect("the lock is free");
    Short.own(&locks).await.expect("the lock is free");
    generic::<Short, 1>(&locks).await.expect("the lock is free");
}
