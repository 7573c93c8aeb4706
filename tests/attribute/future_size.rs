//! The size of the future of an annotated function.

use lock_core::{LockError, LockManager, distributed_lock};

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
