//! Sets of locks.

use std::time::{Duration, Instant};

use lock_core::{Kind, LockError, LockGuard};
use test_support::eventually_async;
use test_support::fixtures::{AT_ONCE, SOON};
use tests::in_time;

use super::subject::{Subject, WAIT, within};

const NAMES: [&str; 3] = ["set:a", "set:b", "set:c"];

/// Waits until the other manager can acquire the lock.
async fn becomes_free(s: &Subject, name: &str) {
    let is_free = async || {
        let acquired = s.second.lock(name).try_acquire().await.unwrap();
        match acquired {
            Some(held) => held.release().await.is_ok(),
            None => false,
        }
    };
    eventually_async(AT_ONCE, is_free).await;
}

/// A set has all its locks, in the order of their keys, or none.
pub(crate) async fn set_holds_all_locks_or_none(s: &Subject) {
    let set = s.first.lock_all(["set:c", "set:a", "set:b", "set:a"]);
    let set = within(SOON, set.wait(WAIT).acquire()).await.unwrap();
    let keys: Vec<_> = set.guards().iter().map(LockGuard::key).collect();
    assert_eq!(keys, NAMES.map(|name| s.key(name)));
    for name in NAMES {
        let token = set.fencing_token_of(name);
        assert_eq!(token.is_some(), s.capabilities.is_fenced());
        let busy = s.second.lock(name).try_acquire().await.unwrap();
        assert!(busy.is_none(), "{busy:?}");
    }
    set.renew().await.unwrap();
    assert!(!set.is_lost() && set.watch().is_held());
    set.release().await.unwrap();
    let held = s.second.lock("set:b").acquire().await.unwrap();
    let none = s.first.lock_all(NAMES).try_acquire().await.unwrap();
    assert!(none.is_none(), "{none:?}");
    for name in ["set:a", "set:c"] {
        becomes_free(s, name).await;
    }
    held.release().await.unwrap();
    let set = s.first.lock_all(NAMES).try_acquire().await.unwrap();
    drop(set.expect("all of them are free"));
    for name in NAMES {
        becomes_free(s, name).await;
    }
}

/// A set that waits has the locks before the busy one. After its wait it has none.
pub(crate) async fn set_that_times_out_holds_no_lock(s: &Subject) {
    let held = s.second.lock("set:c").acquire().await.unwrap();
    let wait = Duration::from_millis(700);
    let started = Instant::now();
    let error = in_time(wait, s.first.lock_all(NAMES).wait(wait).acquire()).await;
    let took = started.elapsed();
    assert!(took >= wait, "{took:?}");
    assert!(
        matches!(&error, Err(LockError::Timeout { key, .. }) if **key == s.key("set:c")),
        "{error:?}"
    );
    for name in ["set:a", "set:b"] {
        becomes_free(s, name).await;
    }
    held.release().await.unwrap();
}

/// Each set waits for the locks that the other one has, in whatever order their names are written.
pub(crate) async fn sets_in_opposite_orders_do_not_deadlock(s: &Subject) {
    let transfers = async |turn: usize, names: [&'static str; 2]| {
        for _ in 0..5 {
            let set = s.manager(turn).lock_all(names).wait(WAIT);
            let sum = set.run(async |set| {
                tokio::task::yield_now().await;
                set.guards().len()
            });
            assert_eq!(within(SOON, sum).await.unwrap(), 2);
        }
    };
    tokio::join!(
        transfers(0, ["set:a", "set:b"]),
        transfers(1, ["set:b", "set:a"]),
        transfers(0, ["set:b", "set:c"]),
    );
}

/// A set inside the body of one of its locks would wait for itself, and so would the lock inside the set.
pub(crate) async fn set_inside_its_own_lock_would_deadlock(s: &Subject) {
    let set = || s.first.lock_all(NAMES).wait(WAIT);
    let inside = async |_: &_| set().acquire().await.unwrap_err();
    let error = s.first.lock("set:b").run(inside).await.unwrap();
    assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
    let inside = async |_: &_| s.first.lock("set:b").acquire().await.unwrap_err();
    let error = set().run(inside).await.unwrap();
    assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
}

/// Sets of readers and of permits share their locks.
pub(crate) async fn sets_of_readers_and_permits_share_their_locks(s: &Subject) {
    let readers = |turn: usize| s.manager(turn).lock_all(NAMES).read();
    let Ok(first) = readers(0).acquire().await else {
        // This store has exclusive locks only.
        return;
    };
    let second = readers(1).acquire().await.unwrap();
    assert_eq!(first.guards()[0].kind(), Kind::Read);
    assert_eq!(
        first.fencing_token_of("set:a"),
        second.fencing_token_of("set:a")
    );
    let none = s.second.lock_all(NAMES).try_acquire().await.unwrap();
    assert!(none.is_none(), "{none:?}");
    first.release().await.unwrap();
    second.release().await.unwrap();
    let permits = |turn: usize| s.manager(turn).lock_all(NAMES).permits(4).weight(2);
    let first = permits(0).acquire().await.unwrap();
    let second = permits(1).acquire().await.unwrap();
    let none = permits(0).try_acquire().await.unwrap();
    assert!(none.is_none(), "{none:?}");
    first.release().await.unwrap();
    second.release().await.unwrap();
    let set = s.first.lock_all(NAMES).acquire().await.unwrap();
    set.release().await.unwrap();
}
