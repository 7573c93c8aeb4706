//! Holding a lock, and releasing it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockError;
use test_support::fixtures::AT_ONCE;
use tests::{poll_once, shut_down};
use tokio::sync::{Barrier, oneshot};
use tokio::task::JoinSet;

use super::subject::{NAME, Subject, WAIT, free_at_once, free_within, granted_at_once, within};

/// No other request gets a held lock, through any manager.
pub(crate) async fn held_lock_is_exclusive(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    for locks in [&s.first, &s.second] {
        let got = locks.lock(NAME).try_acquire().await.unwrap();
        assert!(got.is_none(), "{got:?}");
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Contended { .. }), "{error}");
        let other = locks.lock("order:43").acquire().await;
        other
            .expect("another lock is free")
            .release()
            .await
            .unwrap();
    }
    assert!(!held.is_lost());
    assert!(held.remaining() > Duration::from_secs(15));
    held.release().await.unwrap();
}

/// The error names the holder, and says whether the holder is this process.
pub(crate) async fn contended_error_names_the_holder(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    for locks in [&s.first, &s.second] {
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(error.is_contended());
        let holder = error.holder().expect("the error names the holder");
        if s.capabilities.names_holder() {
            assert_eq!(&*holder.label, "first");
            assert!(error.to_string().contains("`first`"), "{error}");
        }
        assert_eq!(holder.held_for.is_some(), s.value_has_token);
        assert!(holder.held_for < Some(Duration::from_secs(5)));
        if let Some(remaining) = holder.remaining {
            // A deadline in the lock's value is rounded up, and two estimates of the server's time may differ.
            assert!(remaining < Duration::from_secs(31), "{remaining:?}");
            assert!(remaining > Duration::from_secs(28));
        }
        assert_eq!(holder.remaining.is_some(), s.remaining_is_finite);
    }
    let own = s.first.lock(NAME).acquire().await.unwrap_err();
    assert_eq!(
        own.holder().unwrap().is_own(),
        s.capabilities.names_holder()
    );
    held.release().await.unwrap();
}

/// The lock is free when `release` returns.
pub(crate) async fn released_lock_is_free_when_release_returns(s: &Subject) {
    for turn in 0..6 {
        let held = s.manager(turn).lock(NAME).try_acquire().await.unwrap();
        let held = held.expect("the lock was released");
        let watch = held.watch();
        assert!(watch.is_held());
        held.release().await.unwrap();
        assert!(!watch.is_held() && !watch.is_lost());
    }
}

/// Dropping the guard releases the lock at once, and not after the ttl.
pub(crate) async fn dropping_the_guard_releases_the_lock(s: &Subject) {
    drop(s.first.lock(NAME).acquire().await.unwrap());
    let held = free_at_once(&s.second).await;
    drop(held);
    free_at_once(&s.first).await.release().await.unwrap();
}

/// Unwinding releases the lock.
pub(crate) async fn panic_in_the_body_releases_the_lock(s: &Subject) {
    let locks = s.first.clone();
    let running = tokio::spawn(async move {
        let body = async |_: &_| {
            tokio::task::yield_now().await;
            panic!("on purpose");
        };
        locks.lock(NAME).run::<()>(body).await
    });
    assert!(running.await.unwrap_err().is_panic());
    free_at_once(&s.second).await.release().await.unwrap();
}

/// Dropping the future of `run` drops its body and releases the lock.
pub(crate) async fn dropping_run_releases_the_lock(s: &Subject) {
    let locks = s.first.clone();
    let (begun, begins) = oneshot::channel();
    let running = tokio::spawn(async move {
        let body = async |_: &_| {
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        locks.lock(NAME).run(body).await
    });
    begins.await.unwrap();
    let busy = s.second.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    running.abort();
    free_at_once(&s.second).await.release().await.unwrap();
}

/// A release may be dropped at any stage: the lock becomes free, and its next holder keeps it.
pub(crate) async fn dropped_release_releases_only_its_own_lock(s: &Subject) {
    for polls in 0..4 {
        let held = s
            .first
            .lock(NAME)
            .ttl(s.ttl_to_drop())
            .acquire()
            .await
            .unwrap();
        let mut releasing = Box::pin(held.release());
        for _ in 0..polls {
            if poll_once(&mut releasing).await.is_ready() {
                break;
            }
        }
        drop(releasing);
        let next = free_within(s.patience(), &s.second).await;
        // Completes the cleanup that the dropped release left.
        shut_down(&s.first).await;
        next.renew()
            .await
            .expect("the dropped release did not release the next holder's lock");
        next.release().await.unwrap();
    }
}

/// A clean-up that is done has released every dropped guard.
pub(crate) async fn dropped_guards_are_released_in_the_background(s: &Subject) {
    for number in 0..50 {
        drop(s.first.lock(format!("n{number}")).acquire().await.unwrap());
    }
    shut_down(&s.first).await;
    for number in 0..50 {
        let got = s.second.lock(format!("n{number}")).try_acquire().await;
        got.unwrap()
            .expect("the lock is free")
            .release()
            .await
            .unwrap();
    }
}

/// `run` returns an error of the body as the body's value.
pub(crate) async fn run_returns_the_result_of_the_body(s: &Subject) {
    let number = s.first.lock(NAME).run(async |_| 17).await;
    assert_eq!(number.unwrap(), 17);
    let failed = s.first.lock(NAME).run(async |_| Err::<(), _>("mine"));
    assert_eq!(failed.await.unwrap(), Err("mine"));
    let borrowed = String::from("borrowed");
    let token = s
        .second
        .lock(NAME)
        .run(async |held| {
            tokio::task::yield_now().await;
            assert_eq!(held.key(), s.key(NAME));
            (held.fencing_token(), borrowed.as_str())
        })
        .await
        .unwrap();
    assert_eq!(token.0.is_some(), s.capabilities.is_fenced());
    assert_eq!(token.1, "borrowed");
    let free = s.first.lock(NAME).try_acquire().await.unwrap();
    free.expect("`run` released the lock")
        .release()
        .await
        .unwrap();
}

/// A body that acquires its own lock would wait for itself. Other tasks wait for the lock.
pub(crate) async fn nested_acquire_returns_would_deadlock(s: &Subject) {
    let locks = &s.first;
    let body = async |_: &_| {
        let nested = locks.lock(NAME).wait(WAIT).acquire();
        let error = within(AT_ONCE, nested).await.unwrap_err();
        assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
        let deeper = async |_: &_| locks.lock(NAME).acquire().await.unwrap_err();
        let error = locks.lock("order:43").run(deeper).await.unwrap();
        assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
        Some(tokio::spawn(locks.lock(NAME).wait(WAIT).acquire()))
    };
    let waiting = locks.lock(NAME).run(body).await.unwrap();
    let held = granted_at_once(waiting.expect("the body spawned it")).await;
    held.release().await.unwrap();
    let again = locks.lock(NAME).run(async |_| ()).await;
    again.expect("the task no longer holds the lock");
}

/// A watch reports the end of the lock in any task, and does not keep the lock held.
pub(crate) async fn watch_works_in_other_tasks(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let token = held.fencing_token();
    let turn = Arc::new(Barrier::new(5));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (watch, turn) = (held.watch(), Arc::clone(&turn));
        tasks.spawn(async move {
            assert_eq!(watch.fencing_token(), token);
            assert!(watch.is_held() && !watch.is_lost());
            assert!(!watch.remaining().is_zero());
            turn.wait().await;
            // The lock is released here.
            turn.wait().await;
            assert!(!watch.is_held() && !watch.is_lost());
            assert!(watch.remaining().is_zero());
            let mut lost = Box::pin(watch.lost());
            let reported = poll_once(&mut lost).await;
            assert!(reported.is_pending(), "a release is reported as a loss");
        });
    }
    turn.wait().await;
    held.release().await.unwrap();
    turn.wait().await;
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let free = s.second.lock(NAME).try_acquire().await.unwrap();
    free.expect("a watch does not hold the lock")
        .release()
        .await
        .unwrap();
}

/// The futures of `acquire`, `run`, `release`, `renew` and `lost` are `Send`, as `spawn` requires.
pub(crate) async fn futures_can_be_spawned(s: &Subject) {
    let acquiring = s.first.lock(NAME).wait(AT_ONCE).acquire();
    let held = tokio::spawn(acquiring).await.unwrap().unwrap();
    let lost = tokio::spawn(held.lost());
    let held = tokio::spawn(async move {
        held.renew().await.unwrap();
        held
    });
    tokio::spawn(held.await.unwrap().release())
        .await
        .unwrap()
        .unwrap();
    assert!(!lost.is_finished());
    lost.abort();
    let moved = String::from("moved in");
    let running = s.second.lock(NAME).run(async move |held| {
        tokio::task::yield_now().await;
        assert!(!held.is_lost());
        moved
    });
    let out = within(AT_ONCE, tokio::spawn(running)).await.unwrap();
    assert_eq!(out.unwrap(), "moved in");
}

/// All these locks are held at once, so no two names are one lock.
pub(crate) async fn unusual_names_are_distinct_locks(s: &Subject) {
    let longest = "x".repeat(1024);
    let longest_in_two_bytes = "é".repeat(512);
    let almost = "x".repeat(1023);
    let names = [
        "a",
        "A",
        " ",
        "a ",
        " a",
        "  ",
        "a\nb",
        "a\r\nb",
        "\n",
        "\t",
        "a\0b",
        "\0",
        "a\0",
        "'",
        "\"",
        "\\",
        "\\n",
        "a:q",
        "a:f",
        "a:g",
        "a:",
        ":",
        "*",
        "?",
        "[a]",
        "%",
        "%41",
        "-1",
        "0",
        "nil",
        "{a}",
        "{a}b",
        "b{a}",
        "{a}:x",
        "{ }",
        "{\n}",
        "ключ",
        "键",
        "🔒",
        "e\u{301}",
        "é",
        "\u{202e}",
        "\u{feff}",
        "lk1:",
        "order:{42}",
        &almost,
        &longest,
        &longest_in_two_bytes,
    ];
    assert_eq!(
        BTreeSet::from(names).len(),
        names.len(),
        "a name is listed twice"
    );
    let mut held = Vec::new();
    for name in names {
        let got = s.first.lock(name).try_acquire().await;
        let got = got.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        held.push(got.unwrap_or_else(|| panic!("{name:?} is another name's lock")));
    }
    let mut attempts = JoinSet::new();
    for name in names {
        let request = s.second.lock(name);
        attempts.spawn(async move { request.try_acquire().await });
    }
    while let Some(tried) = attempts.join_next().await {
        let tried = tried.unwrap().unwrap();
        assert!(tried.is_none(), "{tried:?}");
    }
    for (guard, name) in held.into_iter().zip(names) {
        assert_eq!(guard.key(), s.key(name));
        guard.release().await.unwrap();
        let free = s.second.lock(name).try_acquire().await.unwrap();
        free.expect("the lock is free").release().await.unwrap();
    }
}
