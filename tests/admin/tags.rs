//! Tags of holders and waiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::{LockManager, LockManagerBuilder};
use test_support::RedisServer;
use test_support::fixtures::{KEY, LONG, NAME, SOON};
use tests::{SET_NX_PX, one_attempt, start_waiter};

/// A user's function.
type Tag = fn() -> Option<String>;

tokio::task_local! {
    static TRACE_ID: String;
}

fn traced(label: &str) -> LockManagerBuilder {
    one_attempt(LockManager::builder())
        .label(label)
        .holder_tag(|| TRACE_ID.try_with(Clone::clone).ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tag_of_the_callers_task_is_shown_to_other_clients() {
    let server = RedisServer::start();
    let locks = traced("web-1").connect(&server.url()).await.unwrap();
    let other = traced("web-2").connect(&server.url()).await.unwrap();
    let request = locks.lock(NAME).ttl(LONG);
    let held = TRACE_ID.scope("4bf92f3577b34da6".to_owned(), async {
        request.acquire().await
    });
    let held = held.await.unwrap();
    let value = server.cli(&["GET", KEY]).text().to_owned();
    assert!(value.ends_with(" web-1 #4bf92f3577b34da6"), "{value}");

    // An error names the holder, and its tag links both traces.
    let error = other.lock(NAME).acquire().await.unwrap_err();
    let holder = error.holder().unwrap();
    assert_eq!(holder.tag.as_deref(), Some("4bf92f3577b34da6"));
    let waiting = other.lock(NAME).wait(SOON);
    let trace = TRACE_ID.scope("b7ad6b71".to_owned(), waiting.acquire());
    let waiter = tokio::spawn(trace);
    let plain = start_waiter(&server, other.lock(NAME).wait(SOON), 2).await;
    let info = other.admin().inspect(NAME).await.unwrap();
    let holder = info.holder().unwrap();
    assert_eq!(
        (&*holder.label, holder.tag.as_deref()),
        ("web-1", Some("4bf92f3577b34da6"))
    );
    let mut waiters: Vec<_> = info
        .waiters
        .iter()
        .map(|w| (&*w.label, w.tag.as_deref()))
        .collect();
    waiters.sort_unstable();
    assert_eq!(waiters, [("web-2", None), ("web-2", Some("b7ad6b71"))]);

    // A handover keeps the tag of the waiter.
    plain.abort();
    held.release().await.unwrap();
    let held = waiter.await.unwrap().unwrap();
    let holder = locks.holder(NAME).await.unwrap().unwrap();
    assert_eq!(
        (&*holder.label, holder.tag.as_deref()),
        ("web-2", Some("b7ad6b71"))
    );
    held.release().await.unwrap();
}

#[tokio::test]
async fn tag_is_made_once_for_each_acquire() {
    let server = RedisServer::start();
    let calls = Arc::new(AtomicU64::new(0));
    let count = |builder: LockManagerBuilder| {
        let calls = Arc::clone(&calls);
        builder.holder_tag(move || Some(calls.fetch_add(1, Ordering::AcqRel).to_string()))
    };
    let url = server.url();
    let on_server = count(LockManager::builder()).connect(&url);
    for locks in [
        on_server.await.unwrap(),
        count(LockManager::builder()).in_memory().unwrap(),
    ] {
        calls.store(0, Ordering::Release);
        for expected in ["0", "1"] {
            let held = locks.lock(NAME).acquire().await.unwrap();
            held.renew().await.unwrap();
            let holder = locks.holder(NAME).await.unwrap().unwrap();
            assert_eq!(holder.tag.as_deref(), Some(expected));
            held.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn panicking_or_empty_tag_gives_a_lock_without_a_tag() {
    let server = RedisServer::start();
    let with = |tag: Tag| LockManager::builder().label("app").holder_tag(tag);
    let cases: [(Tag, u64); 3] = [
        (|| panic!("as the test wants"), 1),
        (|| None, 0),
        (|| Some("\u{1b}\u{e9} \n".to_owned()), 0),
    ];
    for (tag, panics) in cases {
        let on_server = with(tag).connect(&server.url()).await.unwrap();
        for locks in [on_server, with(tag).in_memory().unwrap()] {
            let held = locks.lock(NAME).acquire().await.unwrap();
            let holder = locks.holder(NAME).await.unwrap().unwrap();
            assert_eq!((&*holder.label, holder.tag), ("app", None));
            assert_eq!(locks.stats().panics, panics);
            held.release().await.unwrap();
        }
    }
    // Other dialects compare the whole value at each renewal, and have no tag.
    let locks = with(|| Some("x".to_owned()))
        .connect(&server.url())
        .await
        .unwrap();
    let held = locks.lock(NAME).dialect(SET_NX_PX).acquire().await.unwrap();
    held.renew().await.unwrap();
    assert_eq!(locks.holder(NAME).await.unwrap().unwrap().tag, None);
    held.release().await.unwrap();
}
