//! Foreign code that the library calls: wakers, drops, tracing subscribers and spawns. It may call
//! the library, and it may panic.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use lock_core::{LockGuard, LockManager, LockWatch, LossSignal};
use test_support::fixtures::{
    KEY, LONG, NAME, NOTICE, QUEUE, SLACK, SOON, keys, ms, multi_thread_runtime,
};
use test_support::{RedisServer, eventually_async, helper};
use tests::{run_within, shut_down};

use super::connect;
use super::probe::{self, EXPLOSIVE};

/// A task that its waker owns. Its contents are dropped with the last waker.
struct Owned {
    watch: Option<LockWatch>,
    woken: AtomicUsize,
    inner: Waker,
}

impl Owned {
    fn new(watch: Option<LockWatch>, inner: Waker) -> Arc<Self> {
        Arc::new(Self {
            watch,
            woken: AtomicUsize::new(0),
            inner,
        })
    }
}

impl Wake for Owned {
    fn wake(self: Arc<Self>) {
        probe::check("a wake-up");
        self.woken.fetch_add(1, Ordering::AcqRel);
        self.inner.wake_by_ref();
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        probe::check("the drop of a waker");
        if let Some(watch) = &self.watch {
            let _ = watch.is_lost();
            let _ = watch.remaining();
        }
    }
}

fn poll_lost(lost: &mut LossSignal, waker: &Waker) -> Poll<()> {
    Pin::new(lost).poll(&mut Context::from_waker(waker))
}

/// The library clones, replaces, wakes and drops wakers: at a poll, at the loss, and at the drop of
/// the future.
#[test]
fn drop_of_a_waker_may_call_the_library() {
    run_within(SOON, || {
        let locks = LockManager::in_memory();
        let runtime = multi_thread_runtime(1);
        probe::install();
        let guard = runtime.block_on(locks.lock(NAME).acquire()).unwrap();
        let waker = || Waker::from(Owned::new(Some(guard.watch()), Waker::noop().clone()));
        let mut lost = guard.lost();
        let mut other = guard.watch().lost();
        let _entered = runtime.enter();
        for _ in 0..3 {
            // The poll replaces the previous waker, and the waker's task is dropped.
            assert!(poll_lost(&mut lost, &waker()).is_pending());
            assert!(poll_lost(&mut other, &waker()).is_pending());
        }
        drop(lost);
        drop(guard);
        drop(other);
    });
    probe::assert_no_violation();
}

/// The same on a server, where the background worker wakes the task at a loss.
#[test]
fn loss_wakes_and_drops_wakers_outside_all_mutexes() {
    let server = Arc::new(RedisServer::start());
    run_within(SOON, move || {
        let runtime = multi_thread_runtime(2);
        runtime.block_on(async {
            let locks = connect(&server).await;
            let guard = locks.lock(NAME).ttl(ms(400)).acquire().await.unwrap();
            let mut lost = guard.lost();
            let owned = Owned::new(Some(guard.watch()), Waker::noop().clone());
            assert!(poll_lost(&mut lost, &Waker::from(Arc::clone(&owned))).is_pending());
            server.cli(&["DEL", KEY]);
            eventually_async(SOON, async || owned.woken.load(Ordering::Acquire) == 1).await;
            assert!(guard.is_lost());
        });
    });
    probe::assert_no_violation();
}

/// Polls a future with a waker that checks for held mutexes.
struct Watched<F>(Pin<Box<F>>);

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let waker = Waker::from(Owned::new(None, cx.waker().clone()));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

fn watched<F: Future>(future: F) -> Watched<F> {
    Watched(Box::pin(future))
}

/// Everything that a manager does, with a checking waker at each poll: acquire, wait, hand over,
/// renew, lose, cancel, release, reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_code_never_runs_under_a_mutex() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..16 {
        let locks = locks.clone();
        tasks.spawn(async move {
            for round in 0..20 {
                let name = format!("key:{}", (number + round) % 4);
                let request = locks.lock(name).ttl(ms(300)).wait(SOON);
                match round % 4 {
                    0 => {
                        let guard = watched(request.acquire()).await.unwrap();
                        let mut lost = pin!(watched(guard.lost()));
                        let _ = tokio::time::timeout(ms(1), &mut lost).await;
                        // Connections are cut all the time, so the renewal may fail.
                        let _ = watched(guard.renew()).await;
                        let _ = watched(guard.release()).await;
                    }
                    1 => drop(watched(request.acquire()).await.unwrap()),
                    2 => {
                        let dropped = watched(request.acquire());
                        let _ = tokio::time::timeout(ms(2), dropped).await;
                    }
                    _ => drop(watched(request.run(async |_| ())).await),
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
    probe::assert_no_violation();
}

/// A spawn on a runtime that shuts down drops its task at once, inside the call.
#[test]
fn dropping_runtimes_under_load_does_not_hang() {
    const RUNTIMES: usize = 150;
    let server = Arc::new(RedisServer::start());
    run_within(SOON * 3, move || {
        let staying = multi_thread_runtime(1);
        let locks = staying.block_on(connect(&server));
        for number in 0..RUNTIMES {
            let going = multi_thread_runtime(2);
            for task in 0..4 {
                let locks = locks.clone();
                going.spawn(async move {
                    loop {
                        let request = locks.lock(format!("going:{task}")).ttl(LONG);
                        if let Ok(guard) = request.acquire().await {
                            let _ = guard.release().await;
                        }
                    }
                });
            }
            std::thread::sleep(ms(number as u64 % 8));
            drop(going);
        }
        // The manager keeps working, and has cancelled the calls that were dropped.
        let held = staying.block_on(locks.lock(NAME).acquire()).unwrap();
        staying.block_on(held.release()).unwrap();
        staying.block_on(shut_down(&locks));
        assert_eq!(keys(&server), Vec::<String>::new());
    });
}

/// A thread that is not a task of the runtime survives its shutdown, and gets an error.
#[test]
fn calls_on_a_runtime_that_was_shut_down_return_errors() {
    let server = RedisServer::start();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .arg("shut-down")
        .spawn();
    let record = process.record(SOON, |record| record.get("shut_down").is_some());
    for outcome in record["shut_down"].as_array().unwrap() {
        let outcome = outcome.as_str().unwrap();
        assert!(outcome.contains("it is shutting down"), "{record}");
    }
}

async fn assert_held_for(span: std::time::Duration, held: &LockGuard) {
    let until = Instant::now() + span;
    while Instant::now() < until {
        assert!(!held.is_lost(), "the lock is not renewed any more");
        tokio::time::sleep(ms(10)).await;
    }
}

/// The background worker emits the event "lock lost". It continues to renew, to report losses and
/// to release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_of_a_tracing_subscriber_does_not_stop_the_worker() {
    let ttl = ms(600);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let calm = locks.lock("calm").ttl(ttl).acquire().await.unwrap();
    let mut deleted = Vec::new();
    for number in 0..5 {
        let name = format!("{EXPLOSIVE}:{number}");
        deleted.push(locks.lock(name).ttl(ttl).acquire().await.unwrap());
    }
    for guard in &deleted {
        server.cli(&["DEL", guard.key()]);
    }
    for guard in &deleted {
        let lost = tokio::time::timeout(ttl + NOTICE + SLACK, guard.lost()).await;
        lost.expect("the loss is reported in time");
    }
    assert_held_for(ttl * 2, &calm).await;
    let late = locks.lock("late").ttl(ttl).acquire().await.unwrap();
    assert_held_for(ttl * 2, &late).await;
    server.cli(&["DEL", "lock:late"]);
    let started = Instant::now();
    late.lost().await;
    assert!(
        started.elapsed() < ttl / 3 + NOTICE + SLACK,
        "{:?}",
        started.elapsed()
    );
    // The releases find that other clients own the locks, which is an event as well.
    drop(deleted);
    drop(calm);
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
    assert!(locks.stats().panics >= 5, "{:?}", locks.stats());
    probe::assert_no_violation();
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics");
    }
}

/// A hundred tasks wait for the loss, and a few wakers panic. The worker wakes all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_of_a_waker_does_not_stop_other_wakers() {
    let ttl = ms(400);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let guard = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let mut panicking: Vec<_> = (0..3).map(|_| guard.lost()).collect();
    for lost in &mut panicking {
        assert!(poll_lost(lost, &Waker::from(Arc::new(Panics))).is_pending());
    }
    let waiting: Vec<_> = (0..100).map(|_| tokio::spawn(guard.lost())).collect();
    tokio::task::yield_now().await;
    server.cli(&["DEL", KEY]);
    for listener in waiting {
        let woken = tokio::time::timeout(ttl + NOTICE + SLACK, listener).await;
        woken.expect("the task is woken").unwrap();
    }
    let calm = locks.lock("calm").ttl(ttl).acquire().await.unwrap();
    assert_held_for(ttl * 2, &calm).await;
    assert_eq!(locks.stats().panics, 3);
}

/// The subscriber loses its connection when a waker panics. Other waiters get their grants over a
/// new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_of_a_waker_does_not_stop_notifications() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock("held").ttl(LONG).acquire().await.unwrap();
    let request = locks.lock("held").ttl(LONG).wait(LONG);
    let mut panicking = Box::pin(request.acquire());
    let mut poll = |waker: &Waker| {
        let polled = panicking.as_mut().poll(&mut Context::from_waker(waker));
        assert!(polled.is_pending());
    };
    let started = Instant::now();
    while server.cli(&["EXISTS", "{lock:held}:q"]).integer() == 0 {
        assert!(started.elapsed() < SOON);
        poll(Waker::noop());
        tokio::time::sleep(ms(5)).await;
    }
    tokio::time::sleep(ms(50)).await;
    for _ in 0..3 {
        poll(&Waker::from(Arc::new(Panics)));
    }
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let subscribers = || server.cli(&["PUBSUB", "CHANNELS", "lk1:*"]).array().len();
    // The server confirms the new subscription before the manager has read that.
    let is_subscribed = || subscribers() == 1 && locks.health().is_subscribed;
    eventually_async(SOON, async || is_subscribed()).await;
    assert!(locks.stats().panics >= 1);
    // A notification grants the lock, long before the waiter would poll.
    let guard = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).ttl(LONG).wait(SOON).acquire());
    eventually_async(SOON, async || server.cli(&["EXISTS", QUEUE]).integer() == 1).await;
    let monitor = server.monitor();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    let published = monitor.stop();
    let grants = published
        .all()
        .iter()
        .filter(|sent| sent.name() == "PUBLISH" && sent.words[2].starts_with("g "));
    assert_eq!(grants.count(), 1, "no notification granted the lock");
    drop((next, panicking, held));
    shut_down(&locks).await;
}

/// Thousands of tasks listen to one lock. With a list of wakers that took minutes.
#[tokio::test]
async fn cost_of_a_watcher_does_not_grow_with_their_number() {
    const WATCHERS: usize = 30_000;
    let locks = LockManager::in_memory();
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let mut watchers: Vec<_> = (0..WATCHERS).map(|_| guard.lost()).collect();
    let wakers = [(); 2].map(|()| Waker::from(Owned::new(None, Waker::noop().clone())));
    let work = async {
        for waker in &wakers {
            for lost in &mut watchers {
                assert!(poll_lost(lost, waker).is_pending());
            }
        }
        drop(watchers);
    };
    let started = Instant::now();
    work.await;
    // A millisecond for a thousand watchers, and a hundred times as much for a busy machine.
    assert!(started.elapsed() < SOON / 4, "{:?}", started.elapsed());
}
