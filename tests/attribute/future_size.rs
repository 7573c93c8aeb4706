//! The size of the future of an annotated function.

use std::cell::Cell;

use lock_core::{Lock, LockError, LockManager, distributed_lock};

use crate::is_held;

type Bytes<const N: usize> = [u8; N];

async fn plain<const A: usize, const B: usize, const R: usize>(
    locks: &LockManager,
    argument: Bytes<A>,
) -> Result<Bytes<R>, LockError> {
    let local = [argument[0]; B];
    tokio::task::yield_now().await;
    let held = is_held(locks, "size").await;
    Ok([argument[A - 1] + local[B - 1] + u8::from(held); R])
}

#[distributed_lock(name = "size", ttl = "1s", wait = "1s", manager = locks)]
async fn annotated<const A: usize, const B: usize, const R: usize>(
    locks: &LockManager,
    argument: Bytes<A>,
) -> Result<Bytes<R>, LockError> {
    let local = [argument[0]; B];
    tokio::task::yield_now().await;
    let held = is_held(locks, "size").await;
    Ok([argument[A - 1] + local[B - 1] + u8::from(held); R])
}

#[distributed_lock(name = "size", on_contended = |_| Ok([0; R]), manager = locks)]
async fn answered<const A: usize, const B: usize, const R: usize>(
    locks: &LockManager,
    argument: Bytes<A>,
) -> Result<Bytes<R>, LockError> {
    let local = [argument[0]; B];
    tokio::task::yield_now().await;
    let held = is_held(locks, "size").await;
    Ok([argument[A - 1] + local[B - 1] + u8::from(held); R])
}

fn grows<const A: usize, const B: usize, const R: usize>(locks: &LockManager) {
    let plain = size_of_val(&plain::<A, B, R>(locks, [0; A]));
    let answered = size_of_val(&answered::<A, B, R>(locks, [0; A]));
    assert!(
        answered <= plain + 512 + A + R,
        "{A} bytes of arguments, {B} of locals, {R} of result: {plain} became {answered}"
    );
    let annotated = size_of_val(&annotated::<A, B, R>(locks, [0; A]));
    assert!(
        annotated <= plain + 512 + A + R,
        "{A} bytes of arguments, {B} of locals, {R} of result: {plain} became {annotated}"
    );
}

#[tokio::test]
async fn future_grows_only_by_the_arguments_and_the_result() {
    let locks = LockManager::in_memory();
    assert!(annotated::<1, 1, 1>(&locks, [0]).await.is_ok());
    grows::<1, 1, 1>(&locks);
    grows::<1, 10_000, 1>(&locks);
    grows::<5_000, 1, 1>(&locks);
    grows::<1, 1, 3_000>(&locks);
    grows::<5_000, 10_000, 3_000>(&locks);
}

/// A declared lock of some bytes. It is `Send`, but not `Sync`.
#[derive(Lock)]
#[lock(name = "size", wait = "0s")]
struct Large<const L: usize> {
    #[lock(not_in_name)]
    bytes: Cell<Bytes<L>>,
}

const fn large<const L: usize>() -> Large<L> {
    Large {
        bytes: Cell::new([1; L]),
    }
}

#[derive(Lock)]
#[lock(name = "size", wait = "0s")]
struct LargeSync<const L: usize> {
    #[lock(not_in_name)]
    bytes: Bytes<L>,
}

async fn plain_without_arguments(locks: &LockManager) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(u8::from(is_held(locks, "size").await))
}

#[distributed_lock(lock = large::<L>(), manager = locks)]
async fn declared<const L: usize>(locks: &LockManager) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(u8::from(is_held(locks, "size").await))
}

#[distributed_lock(lock = large::<L>(), on_contended = |_| Ok(0), manager = locks)]
async fn declared_and_answered<const L: usize>(locks: &LockManager) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(u8::from(is_held(locks, "size").await))
}

#[distributed_lock(lock = LargeSync { bytes: [1; L] }, bind = held, manager = locks)]
async fn declared_and_bound<const L: usize>(locks: &LockManager) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(held.bytes[L - 1] * u8::from(is_held(locks, "size").await))
}

#[distributed_lock(
    lock = LargeSync { bytes: [1; L] },
    bind = held,
    on_contended = |_| Ok(0),
    release = background,
    manager = locks,
)]
async fn declared_bound_and_answered<const L: usize>(locks: &LockManager) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(held.bytes[L - 1] * u8::from(is_held(locks, "size").await))
}

#[tokio::test]
async fn future_does_not_grow_by_a_declared_lock() {
    const SIZE: usize = 8192;
    let locks = LockManager::in_memory();
    let plain = size_of_val(&plain_without_arguments(&locks));
    for size in [
        size_of_val(&declared::<SIZE>(&locks)),
        size_of_val(&declared_and_answered::<SIZE>(&locks)),
        size_of_val(&declared_and_bound::<SIZE>(&locks)),
        size_of_val(&declared_bound_and_answered::<SIZE>(&locks)),
    ] {
        assert!(size <= plain + 512, "{plain} became {size}");
    }
    assert_eq!(large::<1>().bytes.get(), [1]);
    assert_eq!(declared::<1>(&locks).await.expect("free"), 1);
    assert_eq!(declared_and_bound::<SIZE>(&locks).await.expect("free"), 1);
}

#[tokio::test]
async fn future_with_a_declared_lock_that_is_not_sync_is_send() {
    let locks = LockManager::in_memory();
    let spawned = |locks: LockManager| tokio::spawn(async move { declared::<1>(&locks).await });
    let held = spawned(locks.clone()).await.expect("no panic");
    assert_eq!(held.expect("free"), 1);
    let answered = tokio::spawn(async move { declared_and_answered::<1>(&locks).await });
    assert_eq!(answered.await.expect("no panic").expect("free"), 1);
}
