//! The option `name` with a list.

use std::sync::{Arc, Mutex};

use lock_core::telemetry::LockEvent;
use lock_core::{Kind, LockError, LockManager, LockName, LockSet, Renew, distributed_lock};

use crate::{becomes_free, is_held};

const AUDIT: &str = "audit";

#[distributed_lock(name = ["account:{from}", "account:{to}"], manager = locks, bind = both)]
async fn transfer(locks: &LockManager, from: u64, to: u64) -> Result<Vec<String>, LockError> {
    let both: &LockSet = both;
    assert!(both.fencing_token_of(format!("account:{from}")).is_some());
    Ok(both
        .guards()
        .iter()
        .map(|guard| guard.key().to_owned())
        .collect())
}

#[distributed_lock(
    name = [next(order, "first"), AUDIT, next(order, "second"), "user:{user}",],
    hash_tag = "{user}",
    manager = locks,
    bind = set,
    release = background,
)]
async fn tagged(
    locks: &LockManager,
    order: &Mutex<Vec<&'static str>>,
    user: &str,
) -> Result<Vec<String>, LockError> {
    Ok(set
        .guards()
        .iter()
        .map(|guard| guard.key().to_owned())
        .collect())
}

fn next(order: &Mutex<Vec<&'static str>>, name: &'static str) -> LockName {
    order.lock().unwrap().push(name);
    name.into()
}

#[distributed_lock(name = ["a", "b"], mode = read, manager = locks, bind = set)]
async fn read(locks: &LockManager) -> Result<Vec<Kind>, LockError> {
    Ok(set
        .guards()
        .iter()
        .map(lock_core::LockGuard::kind)
        .collect())
}

#[distributed_lock(name = ["a", "b"], on_contended = skip, manager = locks)]
async fn skipped(locks: &LockManager) -> Result<Option<bool>, LockError> {
    Ok(Some(is_held(locks, "a").await && is_held(locks, "b").await))
}

#[distributed_lock(name = ["a", "{b}"], wait = "0s", on_contended = |e| e.key().map(str::to_owned), on_error = |_| None, manager = locks)]
async fn answered(locks: &LockManager, b: String) -> Option<String> {
    Some(format!("had {b}"))
}

#[distributed_lock(name = ["a", "b"], ttl = "1s", renew = never, manager = locks)]
async fn loses(locks: &LockManager) -> Result<(), LockError> {
    std::future::pending().await
}

#[tokio::test]
async fn list_is_locked_as_one_set() {
    let locks = LockManager::in_memory();
    let keys = transfer(&locks, 9, 3).await.expect("free");
    assert_eq!(keys, ["lock:account:3", "lock:account:9"]);
    assert!(
        !is_held(&locks, "account:9").await,
        "the release was confirmed"
    );
    let one = transfer(&locks, 7, 7)
        .await
        .expect("a name that is listed twice");
    assert_eq!(one, ["lock:account:7"]);
}

#[tokio::test]
async fn names_of_a_list_are_evaluated_in_written_order_and_tagged() {
    let locks = LockManager::in_memory();
    let order = Mutex::new(Vec::new());
    let keys = tagged(&locks, &order, "u1").await.expect("free");
    let expected =
        ["audit", "first", "second", "user:u1"].map(|name| format!("lock:{{u1}}:{name}"));
    assert_eq!(keys, expected);
    assert_eq!(*order.lock().unwrap(), ["first", "second"]);
}

#[tokio::test]
async fn list_in_mode_read_shares_each_lock() {
    let locks = LockManager::in_memory();
    let reader = locks.lock("b").read().acquire().await.expect("free");
    let kinds = read(&locks).await.expect("shared");
    assert_eq!(kinds, [Kind::Read, Kind::Read]);
    drop(reader);
}

#[tokio::test]
async fn list_with_a_busy_lock_holds_none() {
    let locks = LockManager::in_memory();
    assert_eq!(skipped(&locks).await.expect("free"), Some(true));
    let busy = locks.lock("b").acquire().await.expect("free");
    assert_eq!(skipped(&locks).await.expect("skipped"), None);
    becomes_free(&locks, "a").await;
    let key = answered(&locks, "b".into()).await;
    assert_eq!(key.as_deref(), Some("lock:b"));
    drop(busy);
    becomes_free(&locks, "b").await;
    let body = answered(&locks, "b".into()).await;
    assert_eq!(body.as_deref(), Some("had b"));
}

#[distributed_lock(name = ["a", "b"], mode = read, on_contended = skip, manager = locks)]
async fn skipped_reader(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn skip_of_a_list_is_reported_with_its_kind() {
    let skips = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&skips);
    let observer = move |event: &LockEvent<'_>| {
        if let LockEvent::BodySkipped { lock, .. } = event {
            let skip = (lock.key().to_owned(), lock.kind());
            seen.lock().expect("no panic").push(skip);
        }
    };
    let locks = LockManager::builder()
        .observer(observer)
        .in_memory()
        .unwrap();
    let busy = locks.lock("b").acquire().await.expect("free");
    skipped_reader(&locks).await.expect("skipped");
    drop(busy);
    let skips = skips.lock().expect("no panic").clone();
    assert_eq!(skips, [("lock:b".to_owned(), "read")]);
}

#[tokio::test(start_paused = true)]
async fn body_of_a_list_is_dropped_when_one_lock_is_lost() {
    let locks = LockManager::in_memory();
    let error = loses(&locks).await.expect_err("the lease ended");
    assert!(error.is_lost(), "{error}");
    let renewed = locks.lock("a").renew(Renew::Auto).acquire().await;
    assert!(renewed.is_ok());
}
