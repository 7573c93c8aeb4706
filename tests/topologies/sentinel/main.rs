//! Sentinels, a primary and two replicas: failovers, Sentinels that fail, and tokens across failovers.

use std::time::{Duration, Instant};

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockGuard, LockManager};
use test_support::{Direction, Proxy, RedisServer, SentinelService, eventually_async};
use tests::{Trace, fencing_token, one_attempt};
use topologies::connect;

mod announced;
mod learning;
mod redisson;
mod reports;
mod secured;
mod switches;
mod tokens;

const NAME: &str = "order:42";
/// Bound on a failover, on a loaded machine.
const FAILOVER: Duration = Duration::from_secs(30);
/// The time that the documentation promises, on a loaded machine.
const NOTICE: Duration = Duration::from_secs(5);

/// Acquires the lock when the primary serves again.
async fn acquired(locks: &LockManager, name: &str) -> LockGuard {
    let mut guard = None;
    eventually_async(FAILOVER, async || {
        guard = locks.lock(name).try_acquire().await.ok().flatten();
        guard.is_some()
    })
    .await;
    guard.expect("the condition holds")
}

fn backend_error(error: &LockError) -> BackendErrorKind {
    match error {
        LockError::Backend(error) => error.kind(),
        other => panic!("expected a backend error: {other}"),
    }
}

/// Kills the primary, and checks that its locks continue at the next one.
async fn assert_survives_a_failover(service: &SentinelService, locks: LockManager) {
    let before = acquired(&locks, NAME).await;
    let token = fencing_token(&before);
    before.release().await.unwrap();
    let old = service.primary();
    old.kill9();
    service.wait_for_switch(old.port());
    let after = acquired(&locks, NAME).await;
    assert!(fencing_token(&after) > token);
    let key = service.primary().cli(&["EXISTS", "lock:order:42"]);
    assert_eq!(key.integer(), 1);
    after.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_is_replaced_and_tokens_grow() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    assert_survives_a_failover(&service, locks).await;
}

/// The waiter gets the lock at the new primary, although its queue is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_a_failover() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock(NAME).wait(FAILOVER).acquire());
    eventually_async(NOTICE, async || {
        locks
            .admin()
            .inspect(NAME)
            .await
            .is_ok_and(|seen| seen.waiters_total == 1)
    })
    .await;
    service.failover();
    drop(held);
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// The replicas have the lock. The server that was the primary goes on for some seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_lock_and_its_waiter_survive_a_failover() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    let request = locks.lock(NAME).ttl(Duration::from_secs(60));
    let held = request.acquire().await.unwrap();
    let token = fencing_token(&held);
    let waiter = tokio::spawn(locks.lock(NAME).wait(FAILOVER).acquire());
    eventually_async(NOTICE, async || {
        locks
            .admin()
            .inspect(NAME)
            .await
            .is_ok_and(|seen| seen.waiters_total == 1)
    })
    .await;
    // The Sentinels do not wait for the last writes.
    let has_key = |server: &RedisServer| server.cli(&["EXISTS", "lock:order:42"]).integer() == 1;
    eventually_async(FAILOVER, async || service.servers().iter().all(has_key)).await;
    service.failover();
    let new = service.primary();
    // A replica runs the effects of scripts, and not the scripts.
    let ran_a_script = || {
        let stats = new.cli(&["INFO", "commandstats"]);
        stats.text().contains("cmdstat_evalsha:")
    };
    eventually_async(FAILOVER, async || {
        held.renew().await.is_ok() && ran_a_script()
    })
    .await;
    assert!(!held.is_lost() && !waiter.is_finished());
    assert_eq!(new.cli(&["EXISTS", "lock:order:42"]).integer(), 1);
    held.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(fencing_token(&next) > token);
    assert_eq!(new.cli(&["EXISTS", "lock:order:42"]).integer(), 1);
    next.release().await.unwrap();
    assert_eq!(new.cli(&["EXISTS", "lock:order:42"]).integer(), 0);
}

/// In the middle of a failover, a Sentinel names the old address with the new epoch in `SENTINEL MASTER`. A manager
/// that believed it would stay with the old primary, and give its tokens the lead of the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epoch_counts_for_the_address_that_it_belongs_to() {
    let service = SentinelService::start();
    let old = service.primary();
    let is_replica = |it: &&RedisServer| it.port() != old.port();
    let new = service.servers().iter().find(is_replica).unwrap();
    new.cli(&["REPLICAOF", "NO", "ONE"]);
    let pair = |port: u16| {
        format!(
            "*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n",
            port.to_string().len()
        )
    };
    let proxies: Vec<_> = service.sentinels().iter().map(Proxy::in_front_of).collect();
    for proxy in &proxies {
        let to_client = Direction::ToClient;
        proxy.replace(
            to_client,
            "config-epoch\r\n$1\r\n0",
            "config-epoch\r\n$1\r\n7",
        );
        proxy.replace(to_client, pair(old.port()), pair(new.port()));
    }
    let hosts: Vec<_> = proxies.iter().map(|it| it.address().to_string()).collect();
    let (_, path) = service
        .url()
        .rsplit_once('/')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let locks = connect(&format!("redis+sentinel://{}/{path}", hosts.join(","))).await;
    let held = acquired(&locks, NAME).await;
    assert_eq!(new.cli(&["EXISTS", "lock:order:42"]).integer(), 1);
    assert_eq!(old.cli(&["EXISTS", "lock:order:42"]).integer(), 0);
    drop(held);
}

/// The old primary is frozen, and answers as a primary for ten seconds after it continues. The guard must
/// not believe it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_learns_that_the_new_primary_does_not_have_its_lock() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    let old = service.primary();
    // The replicas never hear of the lock.
    for replica in service
        .servers()
        .iter()
        .filter(|it| it.port() != old.port())
    {
        replica.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    }
    let request = locks.lock(NAME).ttl(Duration::from_secs(60));
    let held = request.acquire().await.unwrap();
    old.stop();
    service.wait_for_switch(old.port());
    let switched = Instant::now();
    old.cont();
    eventually_async(NOTICE, async || held.is_lost()).await;
    assert!(switched.elapsed() < NOTICE);
    let other = connect(&service.url()).await;
    let next = acquired(&other, NAME).await;
    assert!(fencing_token(&next) > fencing_token(&held));
}

/// A Sentinel that was cut off names the old primary. Its epoch is lower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_with_an_old_epoch_is_not_believed() {
    let service = SentinelService::start();
    let old = service.primary().port();
    let liar = &service.sentinels()[0];
    liar.stop();
    let port = old.to_string();
    let others = &service.sentinels()[1..];
    others[0].cli(&["SENTINEL", "FAILOVER", "mymaster"]);
    eventually_async(FAILOVER, async || {
        others.iter().all(|sentinel| {
            let known = sentinel.cli(&["SENTINEL", "MASTER", "mymaster"]);
            known.field("port") != Some(&port)
        })
    })
    .await;
    // It answers before it hears of the failover.
    liar.cont();
    let locks = connect(&service.url()).await;
    let held = acquired(&locks, NAME).await;
    let new = service
        .servers()
        .iter()
        .find(|it| it.cli(&["ROLE"]).array()[0].text() == "master" && it.port() != old);
    let new = new.expect("a replica was promoted");
    assert_eq!(new.cli(&["EXISTS", "lock:order:42"]).integer(), 1);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_without_sentinels_that_live() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    for sentinel in service.sentinels() {
        sentinel.kill9();
    }
    for _ in 0..3 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        held.release().await.unwrap();
    }
    let error = LockManager::connect(&service.url()).await.unwrap_err();
    assert_eq!(
        backend_error(&error),
        BackendErrorKind::NoPrimary,
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_follows_sentinels_that_restart() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    for sentinel in service.sentinels() {
        sentinel.restart();
    }
    let old = service.primary();
    old.kill9();
    service.wait_for_switch(old.port());
    acquired(&locks, NAME).await.release().await.unwrap();
}

#[tokio::test]
async fn wrong_addresses_are_named() {
    let service = SentinelService::start();
    let sentinel = service.sentinels()[0].address();
    let server = service.servers()[0].address();
    for (url, kind, words) in [
        (
            format!("redis+sentinel://{sentinel}/other"),
            BackendErrorKind::NoPrimary,
            "knows no service `other`",
        ),
        (
            format!("redis+sentinel://{server}/mymaster"),
            BackendErrorKind::Unsupported,
            "is no Sentinel",
        ),
        (
            format!("redis://{sentinel}"),
            BackendErrorKind::Unsupported,
            "use redis+sentinel://",
        ),
        (
            "redis+sentinel://127.0.0.1:1/mymaster".to_owned(),
            BackendErrorKind::NoPrimary,
            "no Sentinel of the service `mymaster` replies",
        ),
    ] {
        let began = Instant::now();
        let error = LockManager::connect(&url).await.unwrap_err();
        assert_eq!(backend_error(&error), kind, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
        assert!(began.elapsed() < Duration::from_secs(3));
    }
}

/// The whole of `connect` takes the command timeout at most.
#[tokio::test]
async fn connect_to_frozen_sentinels_ends_in_time() {
    let service = SentinelService::start();
    for sentinel in service.sentinels() {
        sentinel.stop();
    }
    let began = Instant::now();
    let timeout = Duration::from_secs(1);
    let builder = one_attempt(LockManager::builder()).command_timeout(timeout);
    let error = builder.connect(&service.url()).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(began.elapsed() < timeout * 2, "{:?}", began.elapsed());
    for sentinel in service.sentinels() {
        sentinel.cont();
    }
}

/// One that has died does not matter.
#[tokio::test]
async fn one_sentinel_is_enough() {
    let (trace, _collecting) = Trace::begin();
    let service = SentinelService::start();
    let dead = RedisServer::start();
    let address = dead.address();
    dead.kill9();
    // Two that an operator has to fix: a server, and a Sentinel with a password.
    let (plain, locked) = (
        RedisServer::start(),
        RedisServer::options().password("p").start(),
    );
    let unusable = format!("{address},{},{}", plain.address(), locked.address());
    let url = service
        .url()
        .replace("sentinel://", &format!("sentinel://{unusable},"));
    for sentinel in &service.sentinels()[..2] {
        sentinel.kill9();
    }
    let held = connect(&url).await.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    let warnings = trace.count("this Sentinel is not asked");
    assert_eq!(warnings, 2, "{}", trace.text());

    // Without the others, the error tells of each.
    let url = format!("redis+sentinel://{unusable}/mymaster");
    let text = LockManager::connect(&url).await.unwrap_err().to_string();
    let parts = [plain.address(), locked.address(), address].map(|it| it.to_string());
    for part in parts
        .iter()
        .map(String::as_str)
        .chain(["is no Sentinel", "NOAUTH"])
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
