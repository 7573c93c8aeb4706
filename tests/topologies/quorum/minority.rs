//! Servers of a minority that are slower than the others, miss a command, or keep a key that was released.

use std::collections::HashSet;

use lock_core::telemetry::{LockCommand, LockEvent};
use test_support::{Proxy, Reply};

use super::*;

/// A quorum with a proxy in front of each server.
pub(super) struct ProxiedQuorum {
    pub(super) quorum: Quorum,
    pub(super) proxies: Vec<Proxy>,
}

impl ProxiedQuorum {
    pub(super) fn start() -> Self {
        Self::of(Quorum::start())
    }

    pub(super) fn of(quorum: Quorum) -> Self {
        let proxies = quorum.0.iter().map(Proxy::in_front_of).collect();
        Self { quorum, proxies }
    }

    pub(super) fn url(&self) -> String {
        let hosts = self.proxies.iter().map(|it| it.address().to_string());
        format!("redis+quorum://{}", hosts.collect::<Vec<_>>().join(","))
    }

    pub(super) async fn connect(&self, timeout: Duration) -> LockManager {
        let builder = one_attempt(LockManager::builder()).quarantine(Duration::ZERO);
        let builder = builder.command_timeout(timeout);
        builder.connect(&self.url()).await.unwrap()
    }
}

/// A server that was too slow for the grant gets the lock too, and its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_server_gets_the_lock_after_the_grant() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    for server in &quorum.0 {
        server.stop();
        let request = locks.lock(NAME).ttl(LONG).wait(WAIT);
        let held = request.acquire().await.unwrap();
        server.cont();
        let token = format!(" {} ", fencing_token(&held));
        eventually_async(SOON, async || {
            server.cli(&["EXISTS", KEY]).integer() == 1
                && server.cli(&["GET", KEY]).text().contains(&token)
        })
        .await;
        held.release().await.unwrap();
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
}

/// Two servers had another holder at the grant, which left. The first renewal would come after 100 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_a_rival_has_left_get_the_lock_soon_after_the_grant() {
    let quorum = Quorum::start();
    let mut rivals = Vec::new();
    for server in &quorum.0[3..] {
        let rival = LockManager::connect(&server.url()).await.unwrap();
        rivals.push(rival.lock(NAME).ttl(LONG).acquire().await.unwrap());
    }
    let locks = quorum.connect().await;
    let held = locks
        .lock(NAME)
        .ttl(LONG)
        .wait(WAIT)
        .acquire()
        .await
        .unwrap();
    for rival in rivals {
        rival.release().await.unwrap();
    }
    eventually_async(LONG / 6, async || quorum.holders() == 5).await;
    // All of them tell the same token.
    eventually_async(LONG / 6, async || {
        let values = quorum.0.iter().map(|server| server.cli(&["GET", KEY]));
        let token = |value: Reply| value.text().split(' ').nth(1).unwrap().to_owned();
        values.map(token).collect::<HashSet<_>>().len() == 1
    })
    .await;
    held.release().await.unwrap();
    eventually_async(SOON, async || quorum.holders() == 0).await;
}

/// Two servers could not be reached at the grant. The first renewal would come after 100 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_were_cut_off_get_the_lock_soon_after_the_grant() {
    let cut_off = Arc::new(ProxiedQuorum::start());
    let missed = Arc::new(AtomicU32::new(0));
    let (healing, counter) = (Arc::clone(&cut_off), Arc::clone(&missed));
    let builder = one_attempt(LockManager::builder())
        .quarantine(Duration::ZERO)
        .command_timeout(Duration::from_secs(1))
        .observer(move |event: &LockEvent<'_>| {
            let is_acquire = matches!(
                event,
                LockEvent::CommandEnded {
                    command: LockCommand::Acquire,
                    error: Some(_),
                    ..
                }
            );
            // The acquires of the grant have failed at both.
            if is_acquire && counter.fetch_add(1, Ordering::Relaxed) == 1 {
                healing.proxies[3..].iter().for_each(Proxy::forward);
            }
        });
    let locks = builder.connect(&cut_off.url()).await.unwrap();
    for proxy in &cut_off.proxies[3..] {
        proxy.refuse();
        proxy.cut_all();
    }
    let request = locks.lock(NAME).ttl(LONG).wait(WAIT);
    let held = request.acquire().await.unwrap();
    eventually_async(LONG / 6, async || cut_off.quorum.holders() == 5).await;
    assert!(missed.load(Ordering::Relaxed) >= 2);
    held.release().await.unwrap();
    eventually_async(SOON, async || cut_off.quorum.holders() == 0).await;
}

/// A server in quarantine does not grant a lock, but keeps it beside the others. The first renewal would come after 50 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_in_quarantine_gets_the_lock_soon_after_the_grant() {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let clock = FrozenClock::at(u64::try_from(now.as_micros()).unwrap());
    let start = |_| RedisServer::options().clock(&clock).start();
    let quorum = Quorum((0..5).map(start).collect());
    clock.run_ahead_by(7_200_000_000);
    let locks = quorum.try_connect(|builder| builder.quarantine(LONG)).await;
    let locks = locks.unwrap();
    quorum.0[4].restart();
    for _ in 0..2 {
        let request = locks.lock(NAME).ttl(LONG / 2).wait(WAIT);
        let held = request.acquire().await.unwrap();
        eventually_async(LONG / 12, async || quorum.holders() == 5).await;
        held.release().await.unwrap();
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
}

/// The release of a lock does not overtake its acquire at a server that was too slow for the grant, also in a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_before_a_slow_server_replies_leaves_no_lock() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let others: Vec<_> = (0..3).map(|at| format!("order:{at}")).collect();
    for server in &quorum.0 {
        server.stop();
        let request = locks.lock(NAME).ttl(LONG).wait(WAIT);
        request.acquire().await.unwrap().release().await.unwrap();
        let mut dropped = Vec::new();
        for name in &others {
            let request = locks.lock(name).ttl(LONG).wait(WAIT);
            dropped.push(request.acquire().await.unwrap());
        }
        drop(dropped);
        server.cont();
        eventually_async(SOON, async || {
            let keys = quorum.0.iter().map(|it| it.cli(&["KEYS", "lock:*"]));
            keys.map(|keys| keys.array().len()).sum::<usize>() == 0
        })
        .await;
    }
}

/// A server that was cut off when the lock was released frees it as soon as it can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_that_a_minority_missed_is_repeated() {
    let cut_off = ProxiedQuorum::start();
    let locks = cut_off.connect(Duration::from_millis(300)).await;
    let holders = || cut_off.quorum.holders();
    for proxy in &cut_off.proxies[..2] {
        let held = locks.lock(NAME).ttl(LONG).wait(WAIT).acquire().await;
        let held = held.unwrap();
        eventually_async(SOON, async || holders() == 5).await;
        proxy.refuse();
        proxy.cut_all();
        held.release().await.unwrap();
        eventually_async(SOON, async || holders() == 1).await;
        proxy.forward();
        eventually_async(SOON, async || holders() == 0).await;
    }
}

/// An idle connection that the server closed is no failure of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_idle_connections_do_not_fail_an_acquire() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    for _ in 0..5 {
        for server in &quorum.0 {
            server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        let held = locks.lock(NAME).try_acquire().await.unwrap();
        held.expect("the lock is free").release().await.unwrap();
    }
}

/// A release that a minority did not get leaves keys there until their lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_keys_at_a_minority_do_not_delay_the_next_holder() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let stale = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 7 1700000000000 holder";
    let other = stale.replace("6f1c", "7f1c");
    // Keys of one holder, and of two.
    for (pair, owners) in [
        ([0, 1], [stale, stale]),
        ([2, 3], [stale, &other]),
        ([4, 0], [&other, stale]),
        ([1, 2], [stale, &other]),
        ([3, 4], [stale, &other]),
    ] {
        for (server, owner) in pair.into_iter().zip(owners) {
            quorum.0[server].cli(&["SET", KEY, owner, "PX", "600000"]);
        }
        let held = locks.lock(NAME).try_acquire().await.unwrap();
        held.expect("a majority is free").release().await.unwrap();
        let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
        held.release().await.unwrap();
        for server in pair {
            quorum.0[server].cli(&["DEL", KEY]);
        }
        // A release returns before a slow minority has replied. The next pair and this minority would be a majority.
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
    for server in &quorum.0[..3] {
        server.cli(&["SET", KEY, stale, "PX", "600000"]);
    }
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
}
