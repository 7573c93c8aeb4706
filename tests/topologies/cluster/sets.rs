//! Sets of locks: one command for each slot, slots that move, and nodes that do not reply.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager, LockSet};
use test_support::fixtures::{LONG, SOON};
use test_support::{RedisCluster, RedisServer, eventually_async};
use tests::one_attempt;
use topologies::connect;

use super::{FAILOVER, primary_without};

/// Three names in one slot.
const CART: [&str; 3] = ["{cart}:a", "{cart}:b", "{cart}:c"];
const CART_KEY: &str = "lock:{cart}:a";

async fn acquired(locks: &LockManager, names: &[String]) -> LockSet {
    let mut set = None;
    eventually_async(FAILOVER, async || {
        set = locks.lock_all(names).try_acquire().await.ok().flatten();
        set.is_some()
    })
    .await;
    set.expect("the condition holds")
}

fn cart() -> Vec<String> {
    CART.map(str::to_owned).to_vec()
}

fn key(name: &str) -> String {
    format!("lock:{name}")
}

/// Returns a name for each slot owner that `chosen` accepts, up to `count` of them.
fn names_of(
    cluster: &RedisCluster,
    count: usize,
    chosen: impl Fn(&RedisServer) -> bool,
) -> Vec<String> {
    let names = (0..).map(|at| format!("n:{at}"));
    let chosen = names.filter(|name| chosen(cluster.owner_of(&key(name))));
    chosen.take(count).collect()
}

fn is_locked(cluster: &RedisCluster, name: &str) -> bool {
    let key = key(name);
    cluster.owner_of(&key).cli(&["EXISTS", &key]).integer() == 1
}

/// The scripts that clients have sent to the nodes, by number of keys.
fn scripts_of(cluster: &RedisCluster, run: impl AsyncFnOnce()) -> impl Future<Output = usize> {
    let monitors: Vec<_> = cluster.nodes().iter().map(RedisServer::monitor).collect();
    async move {
        run().await;
        let recordings = monitors.into_iter().map(|monitor| monitor.stop());
        let scripts = |recording: test_support::monitor::Recording| {
            let commands = recording.from_clients();
            commands.filter(|it| it.name().starts_with("EVAL")).count()
        };
        recordings.map(scripts).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_slot_are_acquired_by_one_command_and_others_one_each() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let mut mixed = cart();
    mixed.extend(names_of(&cluster, 2, |_| true));
    // With the release of each lock.
    for (names, commands) in [(cart(), 1 + 3), (mixed, 3 + 5)] {
        for first in [true, false] {
            let both = async || {
                let set = locks.lock_all(&names).try_acquire().await.unwrap();
                set.unwrap().release().await.unwrap();
                let set = locks.lock_all(&names).wait(SOON).acquire().await.unwrap();
                set.release().await.unwrap();
            };
            let sent = scripts_of(&cluster, both).await;
            // The first round sends the scripts.
            assert!(first || sent == 2 * commands, "{names:?}: {sent}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_lock_of_any_slot_leaves_nothing_of_an_attempt() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let mut names = cart();
    names.extend(names_of(&cluster, 2, |_| true));
    for busy in &names {
        let held = locks.lock(busy).ttl(LONG).acquire().await.unwrap();
        assert!(
            locks
                .lock_all(&names)
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
        let is_left = |name: &&String| *name != busy && is_locked(&cluster, name);
        eventually_async(SOON, async || !names.iter().any(|name| is_left(&name))).await;
        held.release().await.unwrap();
    }
    acquired(&locks, &names).await.release().await.unwrap();
}

/// A set is held, renewed and released while its slot moves. In an open slot, each lock is freed alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_is_renewed_and_released_while_its_slot_moves() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    for moved in 1..=CART.len() {
        let set = acquired(&locks, &cart()).await;
        let to = primary_without(&cluster, CART_KEY);
        cluster.begin_move(CART_KEY, to);
        let keys = CART.map(key);
        let keys: Vec<_> = keys.iter().map(String::as_str).take(moved).collect();
        cluster.move_keys(&keys, to);
        set.renew().await.unwrap();
        assert!(!set.is_lost());
        let releasing = tokio::spawn(set.release());
        let is_free = |name: &str| {
            let mut connection = to.connect().unwrap();
            connection.call(&["ASKING"]).unwrap();
            let at_target = connection.call(&["EXISTS", &key(name)]).unwrap();
            at_target.integer() == 0 && !is_locked_at_source(&cluster, name)
        };
        eventually_async(SOON, async || CART.iter().all(|name| is_free(name))).await;
        cluster.end_move(CART_KEY, to);
        let released = releasing.await.unwrap();
        let error = released.as_ref().err();
        assert!(error.is_none_or(LockError::is_retryable), "{released:?}");
    }
    acquired(&locks, &cart()).await.release().await.unwrap();
}

fn is_locked_at_source(cluster: &RedisCluster, name: &str) -> bool {
    let reply = cluster.owner_of(CART_KEY).cli(&["EXISTS", &key(name)]);
    // A key that has moved is an error at its source.
    reply.error().is_none() && reply.integer() == 1
}

/// The locks of live nodes are free at once, wherever the frozen one is in the order of the keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_node_does_not_delay_the_release_of_the_other_locks() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER);
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let frozen = cluster.owner_of(CART_KEY);
    let mut names = names_of(&cluster, 2, |owner| owner.port() == frozen.port());
    let of_others = names_of(&cluster, 4, |owner| owner.port() != frozen.port());
    names.extend(of_others.clone());
    // A frozen node does not say who owns a slot.
    let owners = of_others
        .iter()
        .map(|name| (name, cluster.owner_of(&key(name))));
    let owners: Vec<_> = owners.collect();
    let set = locks.lock_all(&names).ttl(LONG).acquire().await.unwrap();
    frozen.stop();
    let began = Instant::now();
    let releasing = tokio::spawn(set.release());
    let is_free = async || {
        owners.iter().all(|(name, owner)| {
            let reply = owner.cli(&["EXISTS", &key(name)]);
            // The cluster may be down until the failover.
            reply.error().is_none() && reply.integer() == 0
        })
    };
    eventually_async(SOON, is_free).await;
    assert!(began.elapsed() < FAILOVER / 2, "{:?}", began.elapsed());
    frozen.cont();
    let released = releasing.await.unwrap();
    let error = released.as_ref().err();
    assert!(error.is_none_or(LockError::is_retryable), "{released:?}");
}

/// The error of the first lock of a slot says nothing about the others, which are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_one_lock_does_not_make_the_others_lost() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let owner = cluster.owner_of(CART_KEY);
    for broken in CART {
        let set = locks.lock_all(CART).try_acquire().await.unwrap().unwrap();
        let queue = format!("lock:{broken}:q");
        assert_eq!(owner.cli(&["SET", &queue, "text"]).error(), None);
        let error = set.release().await.unwrap_err();
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error:?}");
        assert_eq!(locks.stats().lost, 0, "{broken}");
        owner.cli(&["DEL", &queue]);
        acquired(&locks, &cart()).await.release().await.unwrap();
    }
}

/// A manager whose set waits goes on when the node of a lock is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_set_survives_the_death_of_a_node() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let owner = cluster.owner_of(CART_KEY);
    let mut names = cart();
    names.extend(names_of(&cluster, 1, |it| it.port() != owner.port()));
    let ttl = Duration::from_secs(3);
    let held = locks.lock_all(&names).ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock_all(&names).wait(FAILOVER).acquire());
    let is_queued = async || {
        // The first one in the order of the keys.
        let seen = locks.admin().inspect(names.last().unwrap()).await;
        seen.is_ok_and(|seen| seen.waiters_total == 1)
    };
    eventually_async(SOON, is_queued).await;
    owner.kill9();
    drop(held);
    let next = tokio::time::timeout(FAILOVER, waiting).await.unwrap();
    next.unwrap().unwrap().release().await.unwrap();
}

/// As the release of one lock: an error, and no panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_outside_of_a_runtime_is_an_error() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    for names in [cart(), names_of(&cluster, 3, |_| true)] {
        let set = acquired(&locks, &names).await;
        let outside = std::thread::spawn(move || {
            let mut releasing = std::pin::pin!(set.release());
            releasing
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        });
        let released = outside.join().unwrap();
        assert!(
            matches!(released, Poll::Ready(Err(LockError::NoRuntime))),
            "{released:?}"
        );
        // The release goes on in the background.
        acquired(&locks, &names).await.release().await.unwrap();
    }
}
