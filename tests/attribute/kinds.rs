//! The options `mode`, `permits` and `weight`.

use std::sync::atomic::{AtomicUsize, Ordering};

use lock_core::{Kind, LockError, LockManager, distributed_lock};
use tokio::sync::Barrier;

const PERMITS: u32 = 3;

#[distributed_lock(name = "stock", mode = read, manager = locks, bind = held)]
async fn read(locks: &LockManager, inside: &Barrier) -> Result<Kind, LockError> {
    inside.wait().await;
    Ok(held.kind())
}

#[distributed_lock(name = "stock", mode = write, on_contended = skip, manager = locks, bind = held)]
async fn write(locks: &LockManager) -> Result<Option<Kind>, LockError> {
    Ok(Some(held.kind()))
}

#[distributed_lock(name = "stock", mode = exclusive, manager = locks, bind = held)]
async fn exclusive(locks: &LockManager) -> Result<Kind, LockError> {
    Ok(held.kind())
}

#[distributed_lock(name = "mailer", permits = PERMITS, manager = locks, bind = held)]
async fn mail(
    locks: &LockManager,
    now: &AtomicUsize,
    most: &AtomicUsize,
) -> Result<Kind, LockError> {
    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
    tokio::task::yield_now().await;
    now.fetch_sub(1, Ordering::SeqCst);
    Ok(held.kind())
}

#[distributed_lock(name = "memory", permits = 64, weight = 8, manager = locks, bind = held)]
async fn heavy(locks: &LockManager) -> Result<Kind, LockError> {
    Ok(held.kind())
}

struct Pool<const N: u32>;

impl<const N: u32> Pool<N> {
    #[distributed_lock(name = "pool", permits = N, weight = Self::HALF, manager = locks, bind = held)]
    async fn half(&self, locks: &LockManager) -> Result<Kind, LockError> {
        Ok(held.kind())
    }

    #[distributed_lock(name = "pool", permits = N, manager = locks, bind = held)]
    async fn one(locks: &LockManager) -> Result<Kind, LockError> {
        Ok(held.kind())
    }

    const HALF: u32 = N / 2;
}

struct Queue<const SIZE: u32>;

impl<const SIZE: u32> Queue<SIZE> {
    #[distributed_lock(name = "queue", permits = SIZE, weight = 2, manager = locks, bind = held)]
    async fn two(&self, locks: &LockManager) -> Result<Kind, LockError> {
        Ok(held.kind())
    }

    #[distributed_lock(name = "double", permits = SIZE * 2, manager = locks, bind = held)]
    async fn double(&self, locks: &LockManager) -> Result<Kind, LockError> {
        Ok(held.kind())
    }

    /// An associated function shows the attribute no generics, but it can say that there are some.
    #[distributed_lock(name = "block", permits = const { SIZE * 2 }, manager = locks, bind = held)]
    async fn block(locks: &LockManager) -> Result<Kind, LockError> {
        Ok(held.kind())
    }
}

impl<Item> Store<Item> {
    #[distributed_lock(
        name = "store",
        permits = size_of::<Item>() as u32,
        weight = if size_of::<Item>() > 4 { 2 } else { 1 },
        manager = locks,
        bind = held,
    )]
    #[allow(clippy::cast_possible_truncation, reason = "the size of a small type")]
    async fn sized(&self, locks: &LockManager) -> Result<Kind, LockError> {
        Ok(held.kind())
    }
}

struct Store<Item>(std::marker::PhantomData<fn() -> Item>);

#[tokio::test]
async fn permits_may_depend_on_the_generics_of_the_impl() {
    let locks = LockManager::in_memory();
    let double = Queue::<3>.double(&locks).await.expect("free");
    assert_eq!(double.to_string(), "6 permits");
    let block = Queue::<3>::block(&locks).await.expect("free");
    assert_eq!(block.to_string(), "6 permits");
    let store = Store::<u64>(std::marker::PhantomData);
    let sized = store.sized(&locks).await.expect("free");
    assert_eq!(sized.to_string(), "2 of 8 permits");
}

#[tokio::test(start_paused = true)]
async fn readers_run_together_and_a_writer_is_skipped() {
    let locks = LockManager::in_memory();
    // Each reader waits for the other one, and for the writer below.
    let inside = Barrier::new(3);
    let skipped = async {
        inside.wait().await;
        write(&locks).await
    };
    let reads = tokio::join!(read(&locks, &inside), read(&locks, &inside), skipped);
    assert_eq!(reads.0.expect("together"), Kind::Read);
    assert_eq!(reads.1.expect("together"), Kind::Read);
    let written = write(&locks).await.expect("free");
    assert_eq!(written, Some(Kind::Exclusive));
    assert_eq!(exclusive(&locks).await.expect("free"), Kind::Exclusive);
}

#[tokio::test(start_paused = true)]
async fn permits_limit_how_many_calls_run_together() {
    let locks = LockManager::in_memory();
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let call = || mail(&locks, &now, &most);
    let calls = tokio::join!(call(), call(), call(), call(), call(), call());
    assert_eq!(calls.5.expect("in turn").to_string(), "3 permits");
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn weight_is_the_number_of_permits_of_one_call() {
    let locks = LockManager::in_memory();
    let kind = heavy(&locks).await.expect("free");
    assert_eq!(kind, Kind::Permits { of: 64, weight: 8 });
    let kind = Pool::<6>.half(&locks).await.expect("free");
    assert_eq!(kind, Kind::Permits { of: 6, weight: 3 });
    let kind = Pool::<6>::one(&locks).await.expect("free");
    assert_eq!(kind, Kind::Permits { of: 6, weight: 1 });
    let kind = Queue::<5>.two(&locks).await.expect("free");
    assert_eq!(kind, Kind::Permits { of: 5, weight: 2 });
}

#[distributed_lock(name = "nested", mode = read, wait = "1m", on_contended = skip, manager = locks)]
async fn nested_read(locks: &LockManager) -> Result<Option<()>, LockError> {
    Ok(Some(()))
}

#[distributed_lock(name = "nested", mode = read, manager = locks)]
async fn reads_twice(locks: &LockManager) -> Result<LockError, LockError> {
    Ok(nested_read(locks).await.expect_err("it waits for itself"))
}

#[distributed_lock(name = ["a", "nested"], permits = 4, weight = 2, wait = "1m", manager = locks)]
async fn two_of_four(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "nested", permits = 4, weight = WEIGHT, manager = locks)]
async fn some_of_four<const WEIGHT: u32>(
    locks: &LockManager,
) -> Result<Result<(), LockError>, LockError> {
    Ok(two_of_four(locks).await)
}

/// The error comes at once, also with `skip` and with a wait.
#[tokio::test(start_paused = true)]
async fn only_permits_that_are_left_can_be_nested() {
    let locks = LockManager::in_memory();
    let would_deadlock = |error: &LockError| {
        matches!(error, LockError::WouldDeadlock { .. }) && error.key() == Some("lock:nested")
    };
    let error = reads_twice(&locks).await.expect("free");
    assert!(would_deadlock(&error), "{error}");
    let inner = some_of_four::<2>(&locks).await.expect("free");
    assert!(inner.is_ok(), "{inner:?}");
    let inner = some_of_four::<3>(&locks).await.expect("free");
    let error = inner.expect_err("one permit is left");
    assert!(would_deadlock(&error), "{error}");
}
