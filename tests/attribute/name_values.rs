//! The computation of lock names.

use std::fmt::Display;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use lock_core::{LockError, LockManager, LockName, distributed_lock};

use crate::is_held;

struct Loud<'a>(&'a AtomicUsize);

impl Display for Loud<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fetch_add(1, Ordering::SeqCst);
        f.write_str("loud")
    }
}

fn counted(count: &AtomicUsize) -> String {
    count.fetch_add(1, Ordering::SeqCst);
    "counted".into()
}

#[distributed_lock(name = "{loud}", manager = locks)]
async fn template(locks: &LockManager, loud: &Loud<'_>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = counted(count), manager = locks)]
async fn expression(locks: &LockManager, count: &AtomicUsize) -> Result<(), LockError> {
    Ok(())
}

#[test]
fn name_is_computed_once_at_the_first_poll() {
    let locks = LockManager::in_memory();
    let count = AtomicUsize::new(0);
    let loud = Loud(&count);
    let context = &mut Context::from_waker(Waker::noop());
    let mut running = pin!(template(&locks, &loud));
    assert_eq!(count.load(Ordering::SeqCst), 0);
    let _ = running.as_mut().poll(context);
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let mut running = pin!(expression(&locks, &count));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let _ = running.as_mut().poll(context);
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[distributed_lock(name = "a:{left}:{right}", manager = locks)]
async fn holds(
    locks: &LockManager,
    left: &str,
    right: &str,
    expected: &str,
) -> Result<bool, LockError> {
    Ok(is_held(locks, expected).await)
}

#[tokio::test]
async fn name_values_are_encoded() {
    let locks = LockManager::in_memory();
    for (left, right, expected) in [
        ("x", "y", "a:x:y"),
        ("x:y", "z", "a:x%3Ay:z"),
        ("x", "y:z", "a:x:y%3Az"),
        ("{x}", "%", "a:%7Bx%7D:%25"),
        ("a b/c", "A-_.9", "a:a%20b%2Fc:A-_.9"),
        ("größe", "東京", "a:größe:東京"),
        ("\u{1f512}", "\0", "a:%F0%9F%94%92:%00"),
        ("–", "é", "a:%E2%80%93:é"),
    ] {
        assert!(
            holds(&locks, left, right, expected).await.expect("free"),
            "{expected}"
        );
    }
}

#[tokio::test]
async fn name_with_an_empty_value_is_refused() {
    let locks = LockManager::in_memory();
    assert!(holds(&locks, "", "y", "a::y").await.is_err());
    assert!(holds(&locks, "x", "", "a:x:").await.is_err());
}

#[tokio::test]
async fn name_over_one_kibibyte_is_refused() {
    let locks = LockManager::in_memory();
    let long = "x".repeat(1020);
    assert!(
        holds(&locks, &long, "y", "a").await.is_ok(),
        "a:, long, :, y are 1024 bytes"
    );
    assert!(holds(&locks, &long, "yy", "a").await.is_err());
    let encoded = ":".repeat(400);
    assert!(
        holds(&locks, &encoded, "y", "a").await.is_err(),
        "three bytes each"
    );
}

struct Address {
    r#type: u8,
    pair: (u8, (u8, u8)),
}

#[distributed_lock(name = "{at.type}:{at.pair.1.0}:{r#type}", manager = locks)]
async fn paths(locks: &LockManager, at: &Address, r#type: u8) -> Result<bool, LockError> {
    Ok(is_held(locks, "1:3:9").await && at.pair.0 == 2 && at.r#type == 1)
}

#[tokio::test]
async fn placeholder_may_name_a_field() {
    let at = Address {
        r#type: 1,
        pair: (2, (3, 4)),
    };
    assert_eq!(at.pair.1.1, 4);
    assert!(
        paths(&LockManager::in_memory(), &at, 9)
            .await
            .expect("free")
    );
}

#[distributed_lock(name = "{{user{id}}}:cart", manager = locks)]
async fn tagged(locks: &LockManager, id: u8) -> Result<bool, LockError> {
    Ok(is_held(locks, "{user4}:cart").await)
}

#[tokio::test]
async fn name_may_have_a_hash_tag() {
    assert!(tagged(&LockManager::in_memory(), 4).await.expect("free"));
}

fn name_of(id: u8) -> LockName {
    format!("own:{id}").into()
}

#[distributed_lock(name = name_of(id), manager = locks)]
async fn own(locks: &LockManager, id: u8) -> Result<bool, LockError> {
    Ok(is_held(locks, "own:4").await)
}

#[distributed_lock(name = format!("{}:{}", id, id + 1), manager = locks)]
async fn formatted(locks: &LockManager, id: u8) -> Result<bool, LockError> {
    Ok(is_held(locks, "4:5").await)
}

const NAME: &str = "{not a template}";

#[distributed_lock(name = NAME, manager = locks)]
async fn constant(locks: &LockManager) -> Result<bool, LockError> {
    Ok(is_held(locks, "{not a template}").await)
}

#[tokio::test]
async fn name_may_be_an_expression() {
    let locks = LockManager::in_memory();
    assert!(own(&locks, 4).await.expect("free"));
    assert!(formatted(&locks, 4).await.expect("free"));
    assert!(constant(&locks).await.expect("free"));
}

#[distributed_lock(name = "moved:{owned}", manager = locks)]
async fn moved(locks: LockManager, owned: String) -> Result<String, LockError> {
    drop(locks);
    Ok(owned)
}

#[tokio::test]
async fn name_does_not_move_what_the_body_moves() {
    let moved = moved(LockManager::in_memory(), "x".into()).await;
    assert_eq!(moved.expect("free"), "x");
}
