//! What the holder's own program can do to its locks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lock_core::{LockError, LockGuard, LockManager, Renew, distributed_lock};
use test_support::fixtures::{
    AT_ONCE, KEY, LONG, NAME, NOTICE, SOON, current_thread_runtime, exists, keys, ms,
    time_to_expiry,
};
use test_support::{Proxy, RedisServer, Shim, Stopwatch, eventually, eventually_async, helper};
use tests::{
    Trace, assert_held_for, assert_nothing_left, connect, connect_with_timeout, in_time,
    lost_in_time, shut_down,
};
use tokio::sync::Barrier;

use super::{grants, holder};

/// Records that it was dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The body blocks the runtime's only thread for two leases.
#[tokio::test]
async fn f36_blocked_executor_keeps_its_lock() {
    let ttl = ms(900);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let body = async |held: &LockGuard| {
        let before = server.cli(&["GET", KEY]);
        let until = Instant::now() + ttl * 2;
        while Instant::now() < until {
            assert_eq!(server.cli(&["GET", KEY]), before);
            thread::sleep(ms(10));
        }
        held.is_lost()
    };
    let was_lost = locks.lock(NAME).ttl(ttl).run(body).await.unwrap();
    assert!(!was_lost);
    assert_nothing_left(&server, &locks).await;
}

/// The guard is dropped or released while renewals are on their way. These renewals neither create
/// the key again nor report a loss, and no renewal follows.
#[tokio::test]
async fn f37_no_renewal_outlives_its_guard() {
    let every = ms(20);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let request = locks.lock(NAME).ttl(ms(900)).renew(Renew::Every(every));
    for ending in ["release", "drop"] {
        let held = request.clone().acquire().await.unwrap();
        let watch = held.watch();
        let monitor = server.monitor();
        server.cli(&["CLIENT", "PAUSE", "300", "ALL"]);
        assert_held_for(every * 3, &held).await;
        if ending == "release" {
            held.release().await.unwrap();
        } else {
            drop(held);
        }
        shut_down(&locks).await;
        assert!(!watch.is_lost() && !watch.is_held());
        assert_eq!(keys(&server), Vec::<String>::new());
        let recording = monitor.stop();
        // A renewal that was already sent may still arrive. After it there is time for many more.
        eventually_async(SOON, async || {
            let quiet = server.monitor();
            tokio::time::sleep(every * 10).await;
            quiet.stop().client_commands_about(NAME) == 0
        })
        .await;
        assert_eq!(grants(&recording), 0);
        let on_key = |name: &str| {
            let all = recording.all();
            all.iter().rposition(|command| {
                command.is_from_script() && command.name() == name && command.words[1] == KEY
            })
        };
        let deleted = on_key("DEL").expect("the release deleted the key");
        assert!(on_key("PEXPIRE").is_none_or(|last| last < deleted));
    }
}

/// Connections are cut, and the server restarts without losing data. Renewals fail until the fault
/// ends, and then continue.
#[tokio::test]
async fn f38_renewals_continue_after_temporary_errors() {
    let ttl = ms(2_500);
    let server = RedisServer::options()
        .args(["--appendonly", "yes"])
        .args(["--appendfsync", "always"])
        .start();
    let proxy = Proxy::in_front_of(&server);
    // Several renewals get no reply before the lease ends.
    let locks = connect_with_timeout(&proxy.url(), ms(200)).await;
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Every(ms(50)));
    let held = request.acquire().await.unwrap();
    let watch = held.watch();
    let is_renewed = async || watch.remaining() > ttl - ms(400);
    for fault in ["cut", "refused", "restart"] {
        let failed_before = locks.stats().renewals_failed;
        match fault {
            "cut" => proxy.cut_all(),
            "refused" => {
                proxy.refuse();
                proxy.cut_all();
                let failed = || locks.stats().renewals_failed - failed_before;
                eventually_async(SOON, async || failed() >= 2).await;
                proxy.forward();
            }
            _ => server.restart(),
        }
        eventually_async(SOON, is_renewed).await;
        assert!(!held.is_lost(), "after {fault}");
    }
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// A task is dropped with its runtime, in each way in which a runtime can end. A guard is dropped
/// where there is no runtime.
#[test]
fn f39_guard_dropped_with_its_runtime_is_released() {
    let server = RedisServer::start();
    let staying = current_thread_runtime();
    let locks = staying.block_on(connect(&server));
    let shutdowns: [fn(tokio::runtime::Runtime); 3] = [
        drop,
        tokio::runtime::Runtime::shutdown_background,
        |runtime| runtime.shutdown_timeout(ms(50)),
    ];
    for shutdown in shutdowns {
        let ending = current_thread_runtime();
        let held = ending.block_on(locks.lock(NAME).ttl(LONG).acquire());
        let held = held.unwrap();
        ending.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        // A release that was called and was not polled to its end.
        let other = ending.block_on(locks.lock("other").ttl(LONG).acquire());
        let other = other.unwrap();
        ending.spawn(async move {
            tokio::task::yield_now().await;
            other.release().await
        });
        ending.block_on(tokio::task::yield_now());
        assert!(exists(&server, KEY));
        shutdown(ending);
        eventually(SOON, || keys(&server).is_empty());
    }
    let ending = current_thread_runtime();
    let held = ending.block_on(locks.lock(NAME).ttl(LONG).acquire());
    drop(ending);
    thread::spawn(move || drop(held)).join().unwrap();
    eventually(SOON, || keys(&server).is_empty());
    staying.block_on(assert_nothing_left(&server, &locks));
}

/// Unwinding releases the lock. `max_hold` or the ttl ends a lock whose guard is never dropped.
#[tokio::test]
async fn f40_panic_releases_and_a_forgotten_guard_expires() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let panics = locks.lock(NAME).ttl(LONG).run(async |_| {
        tokio::task::yield_now().await;
        panic!("on purpose");
    });
    let panicked: Result<Result<(), LockError>, _> = tokio::spawn(panics).await;
    assert!(panicked.unwrap_err().is_panic());
    let held = locks.lock(NAME).ttl(LONG).wait(AT_ONCE).acquire().await;
    let held = held.expect("the body's panic released it");
    let panicked = tokio::spawn(async move {
        let _held = held;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    let held = locks.lock(NAME).wait(AT_ONCE).acquire().await;
    held.expect("the task's panic released it")
        .release()
        .await
        .unwrap();

    let (ttl, longest) = (ms(600), ms(1_200));
    let started = Stopwatch::start();
    let request = locks.lock(NAME).ttl(ttl).max_hold(longest);
    let held = request.acquire().await.unwrap();
    let watch = held.watch();
    std::mem::forget(held);
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
    let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = started.elapsed();
    assert!(watch.is_lost(), "there are two holders");
    assert!(
        took > ttl + ms(100),
        "the forgotten guard was not renewed: {took:?}"
    );
    assert!(took < longest + NOTICE + started.stalled(), "{took:?}");
    next.release().await.unwrap();

    let process = holder(&server.url(), ms(500), Duration::ZERO).spawn();
    process.record(SOON, |record| record.get("held").is_some());
    process.kill9();
    let remaining = time_to_expiry(&server, KEY);
    let next = in_time(remaining, locks.lock(NAME).wait(SOON).acquire()).await;
    next.unwrap().release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

#[distributed_lock(name = "job", ttl = "1s", manager = locks)]
async fn returns_a_value(
    locks: &LockManager,
    proxy: &Proxy,
    runs: &AtomicUsize,
) -> Result<u32, LockError> {
    runs.fetch_add(1, Ordering::AcqRel);
    proxy.refuse();
    proxy.cut_all();
    Ok(42)
}

/// The body ran, and ran once, so the caller gets its value. A caller of `release` gets the error.
#[tokio::test]
async fn f41_failed_release_hides_no_result() {
    let timeout = ms(200);
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), timeout).await;
    let (trace, _tracing) = Trace::begin();
    let runs = AtomicUsize::new(0);
    let request = locks.lock(NAME).ttl(ms(1_000));
    let body = async |_: &LockGuard| {
        runs.fetch_add(1, Ordering::AcqRel);
        proxy.refuse();
        proxy.cut_all();
        42
    };
    assert_eq!(request.clone().run(body).await.unwrap(), 42);
    trace.assert_says("lock.release_failed");
    proxy.forward();
    assert_nothing_left(&server, &locks).await;

    assert_eq!(returns_a_value(&locks, &proxy, &runs).await.unwrap(), 42);
    assert_eq!(runs.load(Ordering::Acquire), 2);
    proxy.forward();
    assert_nothing_left(&server, &locks).await;

    let held = request.acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    let outcome = in_time(timeout, held.release()).await;
    assert!(matches!(outcome, Err(LockError::Backend(_))), "{outcome:?}");
    proxy.forward();
    assert_nothing_left(&server, &locks).await;
}

#[distributed_lock(name = "job", ttl = "600ms", manager = locks)]
async fn loses_its_lock(
    locks: &LockManager,
    server: &RedisServer,
    flag: Flag,
) -> Result<(), LockError> {
    let _flag = flag;
    server.cli(&["DEL", KEY]);
    std::future::pending().await
}

/// The next renewal reports the loss. It is due within a third of the ttl.
#[tokio::test]
async fn f42_lost_lock_is_reported_and_the_body_dropped() {
    let ttl = ms(600);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(Arc::clone(&dropped));
    let body = async |held: &LockGuard| {
        let _flag = flag;
        let watch = held.watch();
        server.cli(&["DEL", KEY]);
        // A spawned task learns of the loss too.
        tokio::spawn(async move { watch.lost().await });
        std::future::pending::<()>().await;
    };
    let outcome = in_time(ttl / 3, locks.lock(NAME).ttl(ttl).run(body)).await;
    assert!(
        matches!(outcome, Err(LockError::Lost { .. })),
        "{outcome:?}"
    );
    assert!(dropped.swap(false, Ordering::AcqRel));

    let flag = Flag(Arc::clone(&dropped));
    let outcome = in_time(ttl / 3, loses_its_lock(&locks, &server, flag)).await;
    assert!(
        matches!(outcome, Err(LockError::Lost { .. })),
        "{outcome:?}"
    );
    assert!(dropped.load(Ordering::Acquire));

    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let watching = tokio::spawn(held.watch().lost());
    server.cli(&["DEL", KEY]);
    lost_in_time(&held).await;
    tokio::time::timeout(NOTICE, watching)
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(held.release().await, Err(LockError::Lost { .. })));
    assert_nothing_left(&server, &locks).await;
}

#[distributed_lock(name = "job", wait = "60s", manager = locks)]
async fn nested(locks: &LockManager, depth: u32) -> Result<LockError, LockError> {
    if depth > 0 {
        return Box::pin(nested(locks, 0)).await;
    }
    let again = locks.lock(NAME).wait(LONG).acquire().await;
    Ok(again.expect_err("this task holds the lock"))
}

/// The error comes at once, and not after the wait. Concurrent branches of a task are not nested. A
/// spawned task gets an error that names its own process as the holder.
#[tokio::test]
async fn f43_nested_acquire_returns_would_deadlock_at_once() {
    let wait = ms(200);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let clone = locks.clone();
    let body = async |_: &LockGuard| {
        let inner = clone.lock(NAME).wait(LONG);
        let error = in_time(Duration::ZERO, inner.clone().acquire()).await;
        assert!(
            matches!(error, Err(LockError::WouldDeadlock { .. })),
            "{error:?}"
        );
        let error = in_time(Duration::ZERO, inner.clone().run(async |_| ())).await;
        assert!(
            matches!(error, Err(LockError::WouldDeadlock { .. })),
            "{error:?}"
        );
        let none = in_time(Duration::ZERO, inner.clone().try_acquire()).await;
        assert!(none.unwrap().is_none());
        let other = clone.lock("other").wait(LONG).acquire().await;
        other.unwrap().release().await.unwrap();
        let spawned = tokio::spawn(inner.wait(wait).acquire());
        in_time(wait, spawned).await.unwrap().unwrap_err()
    };
    let error = locks.lock(NAME).wait(SOON).run(body).await.unwrap();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    assert!(error.holder().expect("the error names the holder").is_own());

    let error = in_time(Duration::ZERO, nested(&locks, 0)).await.unwrap();
    assert!(matches!(error, LockError::WouldDeadlock { .. }), "{error}");
    let outcome = in_time(Duration::ZERO, nested(&locks, 1)).await;
    assert!(matches!(outcome, Err(LockError::WouldDeadlock { .. })));

    let inside = AtomicBool::new(false);
    let section = async |_: &LockGuard| {
        assert!(
            !inside.swap(true, Ordering::AcqRel),
            "there are two holders"
        );
        tokio::time::sleep(ms(5)).await;
        inside.store(false, Ordering::Release);
    };
    let branch = || locks.lock(NAME).wait(SOON).run(section);
    let (first, second) = tokio::join!(branch(), branch());
    first.unwrap();
    second.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Tasks acquire plain guards in opposite orders, and one name twice. `wait` bounds them, the error
/// names the holder, and the other task gets the lock of the task that gave up.
#[tokio::test]
async fn f44_locks_in_opposite_orders_end_with_the_wait() {
    let wait = ms(300);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let both_hold = Arc::new(Barrier::new(2));
    let acquire_both = |first: &'static str, second: &'static str| {
        let (locks, both_hold) = (locks.clone(), Arc::clone(&both_hold));
        tokio::spawn(async move {
            let _first = locks.lock(first).ttl(LONG).acquire().await?;
            both_hold.wait().await;
            let second = locks.lock(second).ttl(LONG).wait(wait).acquire();
            let _second = in_time(wait, second).await?;
            Ok(())
        })
    };
    let (forward, backward) = (acquire_both("a", "b"), acquire_both("b", "a"));
    let outcomes: [Result<(), LockError>; 2] = [forward.await.unwrap(), backward.await.unwrap()];
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(!errors.is_empty(), "there was no deadlock");
    for error in errors {
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
        assert!(error.holder().expect("the error names the holder").is_own());
    }
    assert_nothing_left(&server, &locks).await;

    let held = locks.lock(NAME).acquire().await.unwrap();
    let outcome = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
    let error = outcome.unwrap_err();
    assert!(error.holder().expect("the error names the holder").is_own());
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Parent and child continue from the same memory: a generator in memory would give both the same
/// owner ids. In the child, a mutex that another thread held at the fork is never unlocked.
#[test]
fn f45_after_a_fork_owner_ids_differ_and_calls_return_forked() {
    const HELD: usize = 300;
    const CHILDREN: usize = 24;
    const EACH: usize = 4;
    let server = RedisServer::start();
    let shim = Shim::fork();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .preload(&shim)
        .arg("fork")
        .arg(HELD.to_string())
        .arg(CHILDREN.to_string())
        .arg(EACH.to_string())
        .spawn();
    let values_of = |what: &str| {
        let records = process.records().into_iter();
        let values: Vec<_> = records.filter_map(|r| r.get(what).cloned()).collect();
        values
    };
    eventually(SOON, || values_of("acquired").len() == 1 + CHILDREN);
    let forked = values_of("forked");
    assert_eq!(forked.len(), CHILDREN);
    for outcomes in &forked {
        let outcomes = outcomes.as_array().unwrap();
        assert_eq!(outcomes.len(), 6);
        assert!(outcomes.iter().all(|o| o == "Err(Forked)"), "{outcomes:?}");
    }

    let values: Vec<String> = keys(&server)
        .iter()
        .map(|key| server.cli(&["GET", key]).text().to_owned())
        .collect();
    // The children dropped their copies of the guards, and the parent still holds the locks.
    assert_eq!(values.len(), HELD + EACH * (1 + CHILDREN));
    let owner_ids: BTreeSet<&str> = values
        .iter()
        .map(|value| value.strip_prefix("lk1:").unwrap())
        .map(|value| value.split(' ').next().unwrap())
        .collect();
    assert_eq!(owner_ids.len(), values.len(), "two locks have one owner id");
    for owner_id in owner_ids {
        let groups: Vec<_> = owner_id.split('-').collect();
        assert_eq!(owner_id.len(), 36);
        // Version 4, and the variant of RFC 9562: all other bits are random.
        assert!(groups[2].starts_with('4'), "{owner_id}");
        assert!(groups[3].starts_with(['8', '9', 'a', 'b']), "{owner_id}");
    }
    process.close_stdin();
    assert!(process.wait(SOON).success());
}
