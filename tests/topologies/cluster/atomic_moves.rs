//! Slots that move with all their keys at once, while clients use their locks. Only Redis 8.4 and later and Valkey 9
//! can do that.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::{LockGuard, LockManager};
use test_support::fixtures::SOON;
use test_support::{RedisCluster, SlotMove};
use tests::{one_attempt, shut_down};
use tokio::task::JoinSet;

use super::{FAILOVER, KEY, NAME, connect, other_primary, start_waiter};

/// A move takes longer than one command.
const OTHER_KEYS: &str = "2000";
const MOVES: usize = 6;

/// Returns a cluster whose slots move at once; `None`, with a line that says so, if this server cannot do that.
fn start_cluster() -> Option<RedisCluster> {
    let cluster = RedisCluster::start();
    let owner = cluster.owner_of(KEY);
    if !cluster.slot_moves().contains(&SlotMove::Atomic) {
        let info = owner.cli(&["INFO", "server"]);
        let version = info.text().lines().find(|line| line.contains("_version:"));
        println!(
            "skipped: a server with {} moves no slot at once; Redis 8.4 and Valkey 9 do",
            version.unwrap_or_default()
        );
        return None;
    }
    let fill = "for at = 1, ARGV[1] do redis.call('SET', KEYS[1] .. at, 'x') end";
    let filled = owner.cli(&["EVAL", fill, "1", &name_in_slot("other"), OTHER_KEYS]);
    assert_eq!(filled.error(), None);
    Some(cluster)
}

/// Returns a name whose lock is in the slot of [`KEY`].
fn name_in_slot(name: impl std::fmt::Display) -> String {
    format!("{{{KEY}}}:{name}")
}

/// Returns how often the nodes have replied with this error.
fn replies_with(cluster: &RedisCluster, code: &str) -> u64 {
    let start = format!("errorstat_{code}:count=");
    let counts = cluster.nodes().iter().map(|node| {
        let info = node.cli(&["INFO", "errorstats"]);
        let mut lines = info.text().lines();
        let count = lines.find_map(|line| line.strip_prefix(&start));
        count.map_or(0, |count| {
            count.trim().parse().expect("a count is a number")
        })
    });
    counts.sum()
}

/// Clients that use locks of the slot all the time.
struct Load {
    stop: Arc<AtomicBool>,
    sections: Arc<AtomicUsize>,
    clients: JoinSet<Duration>,
}

impl Load {
    async fn start(cluster: &RedisCluster) -> Self {
        let mut load = Self {
            stop: Arc::default(),
            sections: Arc::default(),
            clients: JoinSet::new(),
        };
        for client in 0..4 {
            let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER);
            let locks = builder.connect(&cluster.url()).await.unwrap();
            let (stop, sections) = (Arc::clone(&load.stop), Arc::clone(&load.sections));
            load.clients.spawn(async move {
                let mut longest = Duration::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    // No other client uses it, so the one attempt has to succeed.
                    let own = locks.lock(name_in_slot(client)).acquire().await;
                    own.unwrap().release().await.unwrap();
                    longest = longest.max(began.elapsed());
                    let shared = locks.lock(name_in_slot("shared")).wait(FAILOVER);
                    shared.acquire().await.unwrap().release().await.unwrap();
                    sections.fetch_add(2, Ordering::Relaxed);
                }
                longest
            });
        }
        load
    }

    /// Returns when the clients have done this many sections more.
    async fn go_on_for(&self, sections: usize) {
        let target = self.sections.load(Ordering::Relaxed) + sections;
        test_support::eventually_async(SOON, async || {
            self.sections.load(Ordering::Relaxed) >= target
        })
        .await;
    }

    /// Stops the clients. Returns the longest section of a lock that no other client uses.
    async fn stop(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.clients.join_all().await.into_iter().max();
        longest.expect("there are clients")
    }
}

/// Moves the slot away and back again and again, and lets the clients use it between the moves.
async fn move_to_and_fro(cluster: &RedisCluster, load: &Load) {
    for _ in 0..MOVES {
        cluster.move_slot_by(SlotMove::Atomic, KEY, other_primary(cluster));
        load.go_on_for(40).await;
    }
}

/// The old owner replies `MOVED`, and no node replies that the slot is open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_succeed_while_their_slot_moves_at_once() {
    let Some(cluster) = start_cluster() else {
        return;
    };
    let load = Load::start(&cluster).await;
    load.go_on_for(40).await;
    move_to_and_fro(&cluster, &load).await;
    let longest = load.stop().await;
    println!("longest section while its slot moved: {longest:?}");
    assert!(longest < FAILOVER, "{longest:?}");
    assert!(replies_with(&cluster, "MOVED") > 0);
    for code in ["ASK", "TRYAGAIN", "CLUSTERDOWN", "CROSSSLOT"] {
        assert_eq!(replies_with(&cluster, code), 0, "{code}");
    }
}

/// Its subscription ends with the move. It gets a notification from the new owner, or it polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_from_before_an_atomic_move_gets_the_lock() {
    let Some(cluster) = start_cluster() else {
        return;
    };
    let locks = connect(&cluster.url()).await;
    let load = Load::start(&cluster).await;
    for _ in 0..MOVES {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let waiter = start_waiter(&locks).await;
        cluster.move_slot_by(SlotMove::Atomic, KEY, other_primary(&cluster));
        assert!(!waiter.is_finished() && !held.is_lost());
        held.release().await.unwrap();
        let next = tokio::time::timeout(SOON, waiter).await.unwrap();
        next.unwrap().unwrap().release().await.unwrap();
    }
    load.stop().await;
}

/// Holds this many locks, half of them in the slot that moves. The tag of each is its name.
async fn hold_many(cluster: &RedisCluster) -> (LockManager, Vec<(String, LockGuard)>) {
    const LOCKS: usize = 200;
    let tag = Arc::new(Mutex::new(None::<String>));
    let tag_of_next = Arc::clone(&tag);
    let builder = one_attempt(LockManager::builder())
        .command_timeout(FAILOVER)
        .holder_tag(move || tag_of_next.lock().unwrap().clone());
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let mut held = Vec::new();
    for at in 0..LOCKS {
        let name = match at % 2 {
            0 => name_in_slot(format_args!("held-{at}")),
            _ => format!("held-{at}"),
        };
        *tag.lock().unwrap() = Some(name.clone());
        let guard = locks.lock(name.clone()).acquire().await.unwrap();
        held.push((name, guard));
    }
    (locks, held)
}

/// All tasks of a runtime share one connection to each node, so a reply that is missing or one too many would give
/// each later command the reply to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_beside_an_atomic_move_get_their_own_replies() {
    const TASKS: usize = 16;
    const COMMANDS: usize = 2_000;
    let Some(cluster) = start_cluster() else {
        return;
    };
    let (locks, held) = hold_many(&cluster).await;
    let load = Load::start(&cluster).await;
    let names: Arc<Vec<String>> = Arc::new(held.iter().map(|(name, _)| name.clone()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, names, stop) = (locks.clone(), Arc::clone(&names), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut commands = 0;
            while commands < COMMANDS / TASKS || !stop.load(Ordering::Relaxed) {
                let name = &names[(task * 7 + commands) % names.len()];
                let seen = locks.admin().inspect(name.clone()).await.unwrap();
                let tag = seen.holder().and_then(|holder| holder.tag.as_deref());
                assert_eq!(tag, Some(name.as_str()));
                commands += 1;
            }
            commands
        });
    }
    move_to_and_fro(&cluster, &load).await;
    stop.store(true, Ordering::Relaxed);
    let commands: usize = tasks.join_all().await.into_iter().sum();
    assert!(commands >= COMMANDS, "{commands}");
    load.stop().await;
    for (name, guard) in held {
        assert!(!guard.is_lost(), "{name}");
        guard.release().await.unwrap();
    }
    shut_down(&locks).await;
}
