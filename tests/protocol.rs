//! What happens on the wire, on a real server: how many commands, what the network may do to
//! them, and how other clients of the same key fare.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lock_core::{Dialect, Handover, LockError, LockGuard, LockManager, LockManagerBuilder};
use test_support::monitor::Command as RecordedCommand;
use test_support::{Lost, Proxy, RedisServer, Reply, eventually, eventually_async};
use tests::shut_down;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

/// Bound on conditions that say nothing about speed.
const SOON: Duration = Duration::from_secs(20);

/// What must happen without anybody's timer: less than the earliest look of a waiter whom nobody
/// tells anything (750 ms), far less than a claim (2 s) or the default ttl (30 s).
const AT_ONCE: Duration = Duration::from_millis(600);

/// Threads of a busy machine wake up late.
const SLACK: Duration = Duration::from_millis(300);

/// Short enough for a renewal to be waited for, long enough to live while a test is off the
/// processor.
const TTL: Duration = Duration::from_millis(600);

const NAME: &str = "job";
const KEY: &str = "lock:job";
const QUEUE: &str = "{lock:job}:q";

async fn connect(server: &RedisServer) -> LockManager {
    LockManager::connect(&server.url()).await.unwrap()
}

/// A waiter in a task of its own, as the one of that number in the queue.
async fn stand_in_line(server: &RedisServer, locks: &LockManager, number: i64) -> Waiting {
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || {
        server.cli(&["ZCARD", QUEUE]).integer() == number
    })
    .await;
    waiting
}

type Waiting = JoinHandle<Result<LockGuard, LockError>>;

/// The guard of a waiter that has to have the lock by then.
async fn granted(within: Duration, waiting: Waiting) -> LockGuard {
    let granted = tokio::time::timeout(within, waiting).await;
    let guard = granted.unwrap_or_else(|_| panic!("it took longer than {within:?}"));
    guard.unwrap().unwrap()
}

/// What is left beside the fencing counters, which live for five minutes.
fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let texts = keys.array().iter().map(Reply::text);
    texts
        .filter(|key| !key.ends_with(":f"))
        .map(ToOwned::to_owned)
        .collect()
}

async fn assert_nothing_left(server: &RedisServer, locks: &LockManager) {
    shut_down(locks).await;
    assert_eq!(keys(server), Vec::<String>::new());
}

/// Cuts every connection of this kind, and says how many there were.
fn kill_clients(server: &RedisServer, kind: &str) -> i64 {
    server.cli(&["CLIENT", "KILL", "TYPE", kind]).integer()
}

/// Tasks of all managers take turns, so many sections in all, and nobody is let in twice. The
/// result of the release is not asked for where the network is to blame.
async fn take_turns(managers: &[LockManager], tasks: usize, rounds: usize, section: Duration) {
    let inside = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let locks = managers[task % managers.len()].clone();
        let inside = Arc::clone(&inside);
        running.spawn(async move {
            for _ in 0..rounds {
                let request = locks.lock(NAME).wait(SOON);
                let body = async |_: &_| {
                    assert!(!inside.swap(true, Ordering::AcqRel), "two are inside");
                    tokio::time::sleep(section).await;
                    inside.store(false, Ordering::Release);
                };
                request.run(body).await.unwrap();
            }
        });
    }
    while let Some(task) = running.join_next().await {
        task.unwrap();
    }
}

/// Does something to the server again and again, on a thread of its own, until it is dropped.
struct Storm {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Storm {
    fn new(pause: Duration, mut act: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let thread = thread::spawn({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            move || {
                while !stop.load(Ordering::Acquire) {
                    act();
                    rounds.fetch_add(1, Ordering::Release);
                    thread::sleep(pause);
                }
            }
        });
        Self {
            stop,
            rounds,
            thread: Some(thread),
        }
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

mod counts {
    use super::*;

    #[tokio::test]
    async fn an_uncontended_section_is_two_commands() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let monitor = server.monitor();
        for _ in 0..5 {
            locks.lock(NAME).run(async |_| ()).await.unwrap();
            let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
            held.release().await.unwrap();
        }
        let recording = monitor.stop();
        let commands: Vec<_> = recording
            .from_clients()
            .map(RecordedCommand::name)
            .collect();
        assert_eq!(recording.client_commands_about(NAME), 20, "{commands:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_contended_section_is_two_commands() {
        const ROUNDS: usize = 10;
        let server = RedisServer::start();
        let managers = [connect(&server).await, connect(&server).await];
        for tasks in [2, 8, 30] {
            let monitor = server.monitor();
            take_turns(&managers, tasks, ROUNDS, Duration::from_millis(1)).await;
            let commands = monitor.stop().client_commands_about(NAME);
            let sections = tasks * ROUNDS;
            assert!(
                commands * 10 <= sections * 21,
                "{commands} commands for {sections} sections of {tasks} tasks"
            );
        }
        assert_eq!(keys(&server), Vec::<String>::new());
    }

    /// Longer than a third of the claim, so that the claim is extended to the ttl.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_contended_section_with_a_renewal_is_three() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        let monitor = server.monitor();
        let waiting = stand_in_line(&server, &locks, 1).await;
        held.release().await.unwrap();
        let held = granted(AT_ONCE, waiting).await;
        let claim = server.cli(&["PTTL", KEY]).integer();
        assert!(claim <= 2_000, "{claim}");
        eventually_async(SOON, async || server.cli(&["PTTL", KEY]).integer() > 20_000).await;
        held.release().await.unwrap();
        let recording = monitor.stop();
        let scripts = recording
            .from_clients()
            .filter(|command| command.name() == "EVALSHA" && command.words[3] == KEY);
        // The first holder's release, and three of the waiter.
        assert_eq!(scripts.count(), 4);
    }
}

mod network {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_waiter_outlives_its_push_connection() {
        let server = RedisServer::start();
        let (ours, theirs) = (connect(&server).await, connect(&server).await);
        let held = ours.lock(NAME).acquire().await.unwrap();
        let waiting = stand_in_line(&server, &theirs, 1).await;
        assert_eq!(kill_clients(&server, "pubsub"), 1);
        // At once, while nobody listens: the waiter is skipped, and comes back by itself.
        held.release().await.unwrap();
        let held = granted(AT_ONCE, waiting).await;

        let waiting = stand_in_line(&server, &ours, 1).await;
        assert!(kill_clients(&server, "pubsub") >= 1);
        eventually_async(SOON, async || {
            server.cli(&["PUBSUB", "CHANNELS"]).array().len() == 2
        })
        .await;
        held.release().await.unwrap();
        granted(AT_ONCE, waiting).await.release().await.unwrap();
        assert_nothing_left(&server, &ours).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cut_connection_costs_no_release() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        assert!(kill_clients(&server, "normal") >= 1);
        held.release().await.unwrap();
        assert_eq!(keys(&server), Vec::<String>::new());
        drop(locks.lock(NAME).acquire().await.unwrap());
        assert!(kill_clients(&server, "normal") >= 1);
        assert_nothing_left(&server, &locks).await;
    }

    /// Servers and balancers close what is idle; the next to ask must not pay for it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_was_closed_while_idle_is_made_again() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        for _ in 0..5 {
            assert!(kill_clients(&server, "normal") >= 1);
            let got = locks.lock(NAME).try_acquire().await.unwrap();
            got.expect("it is free").release().await.unwrap();
            assert!(kill_clients(&server, "normal") >= 1);
            let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
            held.release().await.unwrap();
        }
    }

    /// In either direction, of either command: acquiring is done once, and so is releasing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_lost_is_asked_again_and_done_once() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let locks = LockManager::connect(&proxy.url()).await.unwrap();
        let monitor = server.monitor();
        let mut last = None;
        for lost in [Lost::Request, Lost::Reply, Lost::Request, Lost::Reply] {
            for wait in [None, Some(SOON)] {
                let request = locks.lock(NAME);
                let request = match wait {
                    None => request,
                    Some(wait) => request.wait(wait),
                };
                proxy.lose_next(lost, KEY);
                let held = request.acquire().await.unwrap();
                assert!(!proxy.is_armed(), "nothing was lost");
                let token = held.fencing_token();
                assert!(token > last, "{token:?} after {last:?}");
                last = token;
                proxy.lose_next(lost, KEY);
                held.release().await.unwrap();
                assert!(!proxy.is_armed(), "nothing was lost");
                assert_eq!(keys(&server), Vec::<String>::new());
            }
        }
        let recording = monitor.stop();
        let counted = recording.all().iter().filter(|c| c.name() == "INCR");
        assert_eq!(counted.count(), 8, "one was granted twice");
        assert_nothing_left(&server, &locks).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_server_that_forgets_scripts_is_told_them_again() {
        let server = Arc::new(RedisServer::start());
        let managers = [connect(&server).await, connect(&server).await];
        let mut flusher = server.connect().unwrap();
        let storm = Storm::new(Duration::from_micros(200), move || {
            flusher.call(&["SCRIPT", "FLUSH"]).unwrap();
        });
        take_turns(&managers, 8, 10, Duration::ZERO).await;
        for _ in 0..50 {
            let held = managers[0].lock(NAME).acquire().await.unwrap();
            held.renew().await.unwrap();
            held.release().await.unwrap();
        }
        assert!(storm.rounds() > 20, "{}", storm.rounds());
        drop(storm);
        assert_nothing_left(&server, &managers[0]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sections_outlive_a_storm_of_cuts() {
        let server = Arc::new(RedisServer::start());
        let managers = [connect(&server).await, connect(&server).await];
        let mut admin = server.connect().unwrap();
        let mut kinds = ["pubsub", "normal", "normal"].into_iter().cycle();
        let storm = Storm::new(Duration::from_millis(20), move || {
            let kind = kinds.next().unwrap();
            // It spares itself by default.
            admin.call(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
        });
        take_turns(&managers, 8, 10, Duration::from_millis(1)).await;
        assert!(storm.rounds() > 3, "{}", storm.rounds());
        drop(storm);
        for locks in &managers {
            assert_nothing_left(&server, locks).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_database_of_the_url_is_chosen_at_each_connection() {
        let server = RedisServer::start();
        let locks = LockManager::connect(&format!("{}/3", server.url())).await;
        let locks = locks.unwrap();
        let mut third = server.connect().unwrap();
        third.call(&["SELECT", "3"]).unwrap();
        let mut exists_in_third = || third.call(&["EXISTS", KEY]).map(|there| there.integer());
        for _ in 0..2 {
            let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
            assert_eq!(exists_in_third().unwrap(), 1);
            assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
            // All but the test's own: the lock connection, the keeper's and the one for pushes.
            let ids = server.cli(&["CLIENT", "LIST"]);
            for client in ids.text().lines().filter(|line| line.contains(" db=3 ")) {
                let id = client.split(['=', ' ']).nth(1).unwrap();
                if !client.contains(" cmd=exists ") {
                    server.cli(&["CLIENT", "KILL", "ID", id]);
                }
            }
            held.renew().await.ok();
            held.release().await.unwrap();
            assert_eq!(exists_in_third().unwrap(), 0);
        }
        assert_eq!(server.cli(&["DBSIZE"]).integer(), 0);
    }
}

mod other_clients {
    use super::*;

    /// Released by DEL, which tells nobody.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_foreign_holder_is_respected_and_followed() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        for _ in 0..3 {
            let set = server.cli(&["SET", KEY, "redis-py:5f1c", "NX", "PX", "30000"]);
            assert_eq!(set.text(), "OK");
            let error = locks.lock(NAME).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::Contended { .. }), "{error}");
            let holder = error.holder().unwrap();
            assert_eq!(holder.label(), "redis-py:5f1c");
            assert!(!holder.is_this_process());
            assert!(holder.remaining().unwrap() > Duration::from_secs(25));

            let first = stand_in_line(&server, &locks, 1).await;
            let second = stand_in_line(&server, &locks, 2).await;
            assert_eq!(server.cli(&["GET", KEY]).text(), "redis-py:5f1c");
            let deleted = Instant::now();
            server.cli(&["DEL", KEY]);
            let held = granted(AT_ONCE, first).await;
            let took = deleted.elapsed();
            // It polls every 50 ms; the rest is a busy machine.
            assert!(took < Duration::from_millis(200), "{took:?}");
            held.release().await.unwrap();
            granted(AT_ONCE, second).await.release().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_foreign_holder_that_dies_is_followed() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        server.cli(&["SET", KEY, "jedis", "NX", "PX", "400"]);
        let asked = Instant::now();
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        let took = asked.elapsed();
        assert!(took < Duration::from_millis(400) + SLACK, "{took:?}");
        held.release().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_foreign_client_respects_our_key() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let set = ["SET", KEY, "mine", "NX", "PX", "1000"];
        let held = locks.lock(NAME).acquire().await.unwrap();
        assert_eq!(server.cli(&set), Reply::Nil);
        let waiting = stand_in_line(&server, &locks, 1).await;
        held.release().await.unwrap();
        assert_eq!(server.cli(&set), Reply::Nil, "it was handed over");
        granted(AT_ONCE, waiting).await.release().await.unwrap();
        assert_eq!(server.cli(&set).text(), "OK");
    }

    /// Nor do we delete, extend or believe in what another client put in the place of our key.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_foreign_value_in_our_place_is_left_alone() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
        server.cli(&["SET", KEY, "theirs", "PX", "30000"]);
        tokio::time::timeout(TTL, held.lost()).await.unwrap();
        let error = held.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { .. }), "{error}");
        shut_down(&locks).await;
        assert_eq!(server.cli(&["GET", KEY]).text(), "theirs");
        assert!(server.cli(&["PTTL", KEY]).integer() > 25_000);
    }

    /// Two commands, between which the key has no expiry.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_sets_its_expiry_later_is_waited_for() {
        let server = Arc::new(RedisServer::start());
        let locks = connect(&server).await;
        assert_eq!(server.cli(&["SETNX", KEY, "old-client"]).integer(), 1);
        let waiting = stand_in_line(&server, &locks, 1).await;
        let trying = tokio::spawn(locks.lock(NAME).try_acquire());
        let expiry = thread::spawn({
            let server = Arc::clone(&server);
            move || {
                thread::sleep(Duration::from_millis(60));
                server.cli(&["PEXPIRE", KEY, "300"]).integer()
            }
        });
        let tried = trying.await.unwrap().unwrap();
        assert!(tried.is_none(), "{tried:?}");
        let held = granted(Duration::from_millis(400) + SLACK, waiting).await;
        assert_eq!(expiry.join().unwrap(), 1);
        held.release().await.unwrap();
    }

    /// How often a client that polls for a free key gets it while our tasks take turns.
    async fn turns_of_a_poller(builder: LockManagerBuilder, sections: usize) -> u64 {
        let server = Arc::new(RedisServer::start());
        let locks = builder.connect(&server.url()).await.unwrap();
        let turns = Arc::new(AtomicU64::new(0));
        let mut client = server.connect().unwrap();
        let storm = Storm::new(Duration::from_millis(5), {
            let turns = Arc::clone(&turns);
            move || {
                let set = ["SET", KEY, "poller", "NX", "PX", "10000"];
                if client.call(&set).unwrap() != Reply::Nil {
                    turns.fetch_add(1, Ordering::AcqRel);
                    client.call(&["DEL", KEY]).unwrap();
                }
            }
        });
        eventually(SOON, || storm.rounds() > 0);
        let before = turns.load(Ordering::Acquire);
        take_turns(&[locks], 4, sections, Duration::from_millis(1)).await;
        let turns = turns.load(Ordering::Acquire) - before;
        drop(storm);
        turns
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sharing_gives_clients_that_poll_their_turn() {
        let shared = LockManager::builder().handover(Handover::YieldToOthers);
        let turns = turns_of_a_poller(shared, 5).await;
        assert!(turns >= 5, "{turns} turns beside 20 of ours");
    }
}

mod holders {
    use super::*;

    /// Each of two runtimes has a connection of its own. In the dialect of deadlines a renewal
    /// replaces the value that the next one compares with.
    #[test]
    fn renewals_that_overtake_each_other_lose_nothing() {
        let server = RedisServer::start();
        for &dialect in Dialect::ALL {
            let here = runtime();
            let guard = here.block_on(async {
                let locks = LockManager::builder().dialect(dialect);
                let locks = locks.connect(&server.url()).await.unwrap();
                let request = locks.lock(NAME).ttl(Duration::from_secs(10));
                request.acquire().await.unwrap()
            });
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        runtime().block_on(async {
                            for _ in 0..200 {
                                guard
                                    .renew()
                                    .await
                                    .unwrap_or_else(|e| panic!("{dialect}: {e}"));
                            }
                        });
                    });
                }
            });
            here.block_on(guard.release()).unwrap();
            assert_eq!(keys(&server), Vec::<String>::new(), "{dialect}");
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_body_longer_than_its_ttl_keeps_its_lock() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let request = locks.lock(NAME).ttl(Duration::from_millis(300));
        let value = || server.cli(&["GET", KEY]);
        let body = async |held: &LockGuard| {
            let before = value();
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(value(), before);
            held.is_lost()
        };
        assert!(!request.run(body).await.unwrap());
        assert_nothing_left(&server, &locks).await;
    }

    /// The keeper has a thread of its own.
    #[test]
    fn a_blocked_executor_keeps_its_lock() {
        let server = RedisServer::start();
        runtime().block_on(async {
            let locks = connect(&server).await;
            let request = locks.lock(NAME).ttl(Duration::from_millis(300));
            let held = request.acquire().await.unwrap();
            let before = server.cli(&["GET", KEY]);
            thread::sleep(Duration::from_secs(1));
            assert!(!held.is_lost());
            assert_eq!(server.cli(&["GET", KEY]), before);
            held.release().await.unwrap();
            assert_eq!(keys(&server), Vec::<String>::new());
        });
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_deleted_key_is_a_lost_lock() {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let gone = Arc::new(AtomicBool::new(false));
        let body_ends = Dropped(Arc::clone(&gone));
        let (begun, begins) = oneshot::channel();
        let request = locks.lock(NAME).ttl(TTL);
        let running = tokio::spawn(request.run(async move |_| {
            let _ends = body_ends;
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        }));
        begins.await.unwrap();
        let deleted = Instant::now();
        assert_eq!(server.cli(&["DEL", KEY]).integer(), 1);
        let out = tokio::time::timeout(SOON, running).await.unwrap().unwrap();
        let took = deleted.elapsed();
        assert!(matches!(out, Err(LockError::Lost { .. })), "{out:?}");
        assert!(gone.load(Ordering::Acquire));
        // The next renewal tells, and that is due within a third of the ttl.
        assert!(took < TTL / 3 + SLACK, "{took:?}");
        assert_eq!(keys(&server), Vec::<String>::new(), "it was made again");
    }

    #[test]
    fn a_guard_that_goes_with_its_runtime_is_released() {
        let server = RedisServer::start();
        let runtime = runtime();
        // One manager outlives the runtime, another one ends with it.
        let outer = runtime.block_on(connect(&server));
        runtime.block_on(async {
            let inner = connect(&server).await;
            for (number, locks) in [&outer, &inner].into_iter().enumerate() {
                let held = locks.lock(format!("n{number}")).acquire().await.unwrap();
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(held);
                });
            }
            tokio::task::yield_now().await;
        });
        assert_eq!(keys(&server).len(), 2);
        drop(runtime);
        eventually(AT_ONCE, || keys(&server).is_empty());
    }

    #[test]
    fn a_guard_is_released_outside_of_any_runtime() {
        let server = RedisServer::start();
        let runtime = runtime();
        let take = async {
            let locks = connect(&server).await;
            locks.lock(NAME).acquire().await.unwrap()
        };
        let held = runtime.block_on(take);
        drop(runtime);
        assert!(!held.is_lost());
        assert_eq!(keys(&server), [KEY]);
        thread::spawn(move || drop(held)).join().unwrap();
        eventually(AT_ONCE, || keys(&server).is_empty());
    }

    /// Of a waiter too, which has to hand on what it may be given.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_waiter_that_goes_with_its_runtime_is_passed_over() {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        let ending = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        ending.spawn(locks.lock(NAME).wait(SOON).acquire());
        eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 1).await;
        let staying = stand_in_line(&server, &locks, 2).await;
        ending.shutdown_background();
        held.release().await.unwrap();
        granted(AT_ONCE, staying).await.release().await.unwrap();
        assert_nothing_left(&server, &locks).await;
    }

    /// Nothing of ours is immortal, and of what is not needed any more nothing stays but the
    /// fencing counters.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_key_expires_and_none_outlives_its_use() {
        let server = RedisServer::start();
        let shared = LockManager::builder().handover(Handover::YieldToOthers);
        let shared = shared.connect(&server.url()).await.unwrap();
        for locks in [connect(&server).await, shared] {
            let tagged = locks.lock("{tag}:job").acquire().await.unwrap();
            let held = locks.lock(NAME).acquire().await.unwrap();
            let first = stand_in_line(&server, &locks, 1).await;
            let second = stand_in_line(&server, &locks, 2).await;
            let short = locks.lock(NAME).wait(Duration::from_millis(50));
            assert!(short.try_acquire().await.unwrap().is_none());
            let all = server.cli(&["KEYS", "*"]);
            assert!(all.array().len() >= 5, "{all:?}");
            for key in all.array() {
                let left = server.cli(&["PTTL", key.text()]).integer();
                assert!(left > 0, "{key:?} has no expiry: {left}");
                assert!(left <= 86_400_000, "{key:?} lives for {left} ms");
            }
            drop(tagged);
            drop(held);
            drop(granted(AT_ONCE, first).await);
            granted(AT_ONCE, second).await.release().await.unwrap();
            shut_down(&locks).await;
            // The grace after the last hand-over is over by itself.
            eventually_async(AT_ONCE, async || keys(&server).is_empty()).await;
        }
    }
}

mod rights {
    use super::*;

    /// Sections and waiters of a user with these rights.
    async fn suffice(rights: &[&str]) {
        let server = RedisServer::start();
        let mut command = vec!["ACL", "SETUSER", "app", "on", ">pass"];
        command.extend(rights);
        assert_eq!(server.cli(&command).error(), None);
        let url = format!("redis://app:pass@{}", server.address());
        let managers = [
            LockManager::connect(&url).await.unwrap(),
            LockManager::connect(&url).await.unwrap(),
        ];
        let held = managers[0].lock(NAME).acquire().await.unwrap();
        held.renew().await.unwrap();
        let first = stand_in_line(&server, &managers[1], 1).await;
        let second = stand_in_line(&server, &managers[0], 2).await;
        held.release().await.unwrap();
        // Who cannot be told asks, every half second.
        let poll = Duration::from_millis(500);
        let held = granted(poll + SLACK, first).await;
        assert!(!second.is_finished());
        held.release().await.unwrap();
        granted(poll + SLACK, second).await.release().await.unwrap();
        for locks in &managers {
            assert_nothing_left(&server, locks).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_channels_waiters_ask() {
        suffice(&["~*", "resetchannels", "+@all"]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_pubsub_commands_waiters_ask() {
        suffice(&["~*", "&*", "+@all", "-@pubsub"]).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn without_the_commands_of_the_preflight_locks_work() {
        suffice(&["~*", "&*", "+@all", "-script", "-info", "-role"]).await;
    }

    /// One manager that may be pushed to, among others that may not.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn those_who_ask_and_those_who_are_told_share_a_queue() {
        let server = RedisServer::start();
        server.cli(&["ACL", "SETUSER", "app", "on", ">pass", "~*", "+@all"]);
        let url = format!("redis://app:pass@{}", server.address());
        let asks = LockManager::connect(&url).await.unwrap();
        let told = connect(&server).await;
        let mut held = told.lock(NAME).acquire().await.unwrap();
        // Who may tell nobody has handed over all the same: even those who are told look by
        // themselves once a second.
        let (asked, looked) = (Duration::from_millis(500), Duration::from_secs(1));
        let mut line = Vec::new();
        for (number, (locks, within)) in (1..).zip([
            (&asks, asked),
            (&told, looked),
            (&asks, asked),
            (&told, looked),
        ]) {
            line.push((within, stand_in_line(&server, locks, number).await));
        }
        for (within, waiting) in line {
            held.release().await.unwrap();
            held = granted(within + SLACK, waiting).await;
        }
        held.release().await.unwrap();
    }
}

mod scripts {
    use super::*;

    const FOLDER: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../lock-core/src/backend/redis/scripts"
    );

    /// The command in the header of a script, in one line.
    fn by_hand(script: &str) -> String {
        let source = std::fs::read_to_string(format!("{FOLDER}/{script}")).unwrap();
        let header = source
            .lines()
            .skip_while(|line| !line.starts_with("-- By hand"))
            .skip(1)
            .map_while(|line| line.strip_prefix("--   "));
        let command: Vec<_> = header
            .map(|line| line.trim_end_matches('\\').trim())
            .collect();
        assert!(!command.is_empty(), "{script} does not say how to run it");
        command.join(" ")
    }

    /// Runs it in bash, in its folder, as its header says; only the port is ours.
    fn run(server: &RedisServer, script: &str) -> Vec<String> {
        let found = Command::new("redis-cli")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        assert!(
            found.is_ok(),
            "the scripts are run by hand with `redis-cli`, which is not there; install it \
             (Debian, Ubuntu: redis-tools; Fedora, Alpine, macOS: with the server)"
        );
        let to_our_server = format!(
            "set -eu; redis-cli() {{ command redis-cli -p {} \"$@\"; }}; {}",
            server.port(),
            by_hand(script)
        );
        let path = Path::new(FOLDER).join(script);
        let output = Command::new("bash")
            .args(["-c", &to_our_server])
            .current_dir(path.parent().expect("it is in a folder"))
            .output()
            .expect("the command in the header is one for bash");
        let (said, complained) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{script}: {said}{complained}");
        assert_eq!(complained, "", "{script}");
        said.lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn each_runs_as_its_header_says() {
        let server = RedisServer::start();
        assert_eq!(run(&server, "release.lua")[0], "gone");
        assert_eq!(run(&server, "renew.lua")[0], "gone");
        assert_eq!(keys(&server), Vec::<String>::new());

        let held = run(&server, "acquire.lua");
        assert_eq!(held[0], "held");
        assert_eq!(held[3], "30000");
        let value = server.cli(&["GET", "lock:a"]);
        let words: Vec<_> = value.text().split(' ').collect();
        assert!(words[0].starts_with("lk1:"), "{value:?}");
        assert_eq!(words[1], held[2], "the token");
        let since: i64 = words[2].parse().unwrap();
        let now_us: i64 = held[1].parse().unwrap();
        assert_eq!(since, now_us / 1000, "when it was granted");
        assert_eq!(words[3], "by-hand");

        // Asking again is having asked once.
        let again = run(&server, "acquire.lua");
        assert_eq!((&*again[0], &again[2]), ("held", &held[2]));
        server.cli(&["PEXPIRE", "lock:a", "5000"]);
        let renewed = run(&server, "renew.lua");
        assert_eq!((&*renewed[0], &renewed[2]), ("held", &held[2]));
        assert_eq!(renewed[3], "30000");
        assert!(server.cli(&["PTTL", "lock:a"]).integer() > 25_000);
        assert_eq!(run(&server, "release.lua")[0], "released");
        assert_eq!(keys(&server), Vec::<String>::new());
    }

    #[test]
    fn those_of_the_dialects_run_as_their_headers_say() {
        let server = RedisServer::start();
        let run = |script: &str| run(&server, &format!("dialects/{script}"))[0].clone();
        let pttl = || server.cli(&["PTTL", "lock:a"]).integer();

        assert_eq!(run("extend.lua"), "gone");
        assert_eq!(run("release.lua"), "gone");
        assert_eq!(run("setnx_expire.lua"), "held");
        assert_eq!(run("setnx_expire.lua"), "held", "asking again");
        assert_eq!(server.cli(&["GET", "lock:a"]).text(), "me");
        server.cli(&["PEXPIRE", "lock:a", "5000"]);
        assert_eq!(run("extend.lua"), "held");
        assert!(pttl() > 25_000);
        assert_eq!(run("deadline_take.lua"), "busy", "it is no deadline");
        assert_eq!(run("release.lua"), "held");
        assert_eq!(keys(&server), Vec::<String>::new());

        assert_eq!(run("repair.lua"), "gone");
        server.cli(&["SET", "lock:a", "them"]);
        assert_eq!(run("setnx_expire.lua"), "busy");
        assert_eq!(run("repair.lua"), "held");
        assert!(pttl() > 25_000);
        assert_eq!(run("repair.lua"), "gone", "it has an expiry now");
        server.cli(&["DEL", "lock:a"]);

        // The deadline that the headers name has passed long ago.
        server.cli(&["SET", "lock:a", "1763700000000"]);
        assert_eq!(run("deadline_extend.lua"), "gone");
        assert_eq!(run("deadline_release.lua"), "gone");
        assert_eq!(run("deadline_take.lua"), "held");
        assert!(pttl() > 25_000);
        assert_eq!(run("deadline_take.lua"), "busy");
        assert_eq!(run("deadline_release.lua"), "gone", "another deadline");
    }

    /// A renewal got no answer, and the deadline before it has passed: what stands there may be the
    /// next holder's, who happened to write the same.
    #[test]
    fn a_deadline_that_only_may_be_ours_is_left_alone() {
        let server = RedisServer::start();
        let ahead = SystemTime::now() + SOON;
        let ahead = ahead.duration_since(UNIX_EPOCH).unwrap().as_millis();
        let ahead = ahead.to_string();
        for (confirmed, answer) in [("1763700000000", "gone"), (&ahead, "held")] {
            server.cli(&["SET", "lock:a", &ahead]);
            for (script, until) in [("deadline_extend", &*ahead), ("deadline_release", "0")] {
                let file = format!("{FOLDER}/dialects/{script}.lua");
                let text = std::fs::read_to_string(Path::new(&file)).unwrap();
                let call = [
                    "EVAL", &text, "1", "lock:a", until, "100", confirmed, &ahead,
                ];
                let said = server.cli(&call);
                assert_eq!(said.array()[0].text(), answer, "{script} {confirmed}");
            }
            let left = server.cli(&["EXISTS", "lock:a"]).integer();
            assert_eq!(left == 1, answer == "gone");
        }
    }

    /// drive.lua is a part of two others; every other file is run above.
    #[test]
    fn there_is_no_other_script() {
        let scripts_in = |folder: &str| {
            let mut files: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != "dialects")
                .collect();
            files.sort_unstable();
            files
        };
        assert_eq!(
            scripts_in(FOLDER),
            ["acquire.lua", "drive.lua", "release.lua", "renew.lua"]
        );
        assert_eq!(
            scripts_in(&format!("{FOLDER}/dialects")),
            [
                "deadline_extend.lua",
                "deadline_release.lua",
                "deadline_take.lua",
                "extend.lua",
                "release.lua",
                "repair.lua",
                "setnx_expire.lua"
            ]
        );
    }
}
