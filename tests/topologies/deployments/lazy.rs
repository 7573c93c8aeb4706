//! Managers that are made while all servers are away.

use std::time::{Duration, Instant};

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager, LockManagerBuilder};
use test_support::fixtures::{SOON, ms};
use test_support::{Authority, RedisCluster, RedisServer, SentinelService, eventually_async};
use tests::{in_time, one_attempt};

const NAME: &str = "order:42";
/// Longer than a deployment needs to serve again.
const OUTAGE: Duration = Duration::from_secs(60);

/// Makes a manager while these servers are away. Its calls fail in time then; they wait for the servers if they may; and
/// the manager connects by itself.
async fn assert_starts_before_its_servers(
    url: &str,
    servers: &[&RedisServer],
    wait_until_ready: impl Fn(),
    change: impl Fn(LockManagerBuilder) -> LockManagerBuilder,
) {
    for server in servers {
        server.kill9();
    }
    let lazy = || {
        let builder = change(one_attempt(LockManager::builder()));
        builder.connect_lazy(url).unwrap()
    };
    let (locks, idle, operator) = (lazy(), lazy(), lazy());
    assert!(!locks.health().was_connected);
    let wait = ms(1_200);
    let error = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
    let error = error.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(!error.is_contended(), "{error}");
    // An empty list would be a lie.
    let seen = operator.admin().list("*").await;
    assert!(seen.is_err(), "{seen:?}");

    let job = || locks.lock(NAME).outage_wait(OUTAGE);
    let attempt = tokio::spawn(job().try_acquire());
    let waiter = tokio::spawn(locks.lock("b").wait(ms(500)).outage_wait(OUTAGE).acquire());
    let set = tokio::spawn(
        locks
            .lock_all(["{s}:1", "{s}:2"])
            .outage_wait(OUTAGE)
            .try_acquire(),
    );
    tokio::time::sleep(ms(1_500)).await;
    assert!(!attempt.is_finished() && !waiter.is_finished() && !set.is_finished());
    for server in servers {
        server.restart();
    }
    wait_until_ready();
    let held = attempt.await.unwrap().unwrap().expect("it is free");
    waiter.await.unwrap().unwrap().release().await.unwrap();
    let set = set.await.unwrap().unwrap().expect("both are free");
    set.release().await.unwrap();
    assert!(locks.health().was_connected);
    let busy = Instant::now();
    assert!(job().try_acquire().await.unwrap().is_none());
    assert!(busy.elapsed() < ms(1_000), "{:?}", busy.elapsed());
    held.renew().await.unwrap();
    held.release().await.unwrap();
    eventually_async(SOON, async || idle.health().is_connected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_manager_of_a_server_with_tls() {
    let authority = Authority::new();
    let server = RedisServer::options()
        .tls(&authority, &authority.server(), false)
        .start();
    let ca = test_support::tls::shown(&authority.ca());
    let url = format!("{}?ssl_ca_certs={ca}", server.tls_url());
    assert_starts_before_its_servers(&url, &[&server], || {}, |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_manager_behind_sentinels() {
    let service = SentinelService::start();
    let servers: Vec<_> = service
        .servers()
        .iter()
        .chain(service.sentinels())
        .collect();
    assert_starts_before_its_servers(&service.url(), &servers, || {}, |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_manager_of_a_cluster() {
    let cluster = RedisCluster::start();
    let servers: Vec<_> = cluster.nodes().iter().collect();
    let ready = || cluster.wait_stable();
    assert_starts_before_its_servers(&cluster.url(), &servers, ready, |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_manager_of_a_quorum() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<_> = servers.iter().map(|it| it.address().to_string()).collect();
    let url = format!("redis+quorum://{}", hosts.join(","));
    let all: Vec<_> = servers.iter().collect();
    let change = |builder: LockManagerBuilder| builder.quarantine(Duration::ZERO);
    assert_starts_before_its_servers(&url, &all, || {}, change).await;
}

/// As with a manager that connects at once, the servers of a quorum are judged at their first connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_quorum_keeps_the_quarantine_and_counts_each_server_once() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let builder = || one_attempt(LockManager::builder());
    let locks = builder().connect_quorum_lazy(urls.clone()).unwrap();
    let refused = locks.lock(NAME).try_acquire().await;
    assert!(refused.is_err(), "all have just started: {refused:?}");
    // Two names of one server.
    let named = urls[0].replace("127.0.0.1", "localhost");
    let twice = [urls[0].clone(), named, urls[1].clone()];
    let locks = builder().quarantine(Duration::ZERO);
    let locks = locks.connect_quorum_lazy(twice).unwrap();
    eventually_async(SOON, async || {
        let refused = locks.lock(NAME).try_acquire().await;
        matches!(refused, Err(LockError::Backend(error)) if error.kind() == BackendErrorKind::InvalidUrl)
            || locks.health().is_connected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lazy_manager_reports_what_does_not_pass_at_once() {
    let server = RedisServer::start();
    let address = server.address();
    for url in [
        format!("redis+cluster://{address}"),
        format!("redis+sentinel://{address}/mymaster"),
    ] {
        let builder = one_attempt(LockManager::builder());
        let locks = builder.connect_lazy(&url).unwrap();
        let started = Instant::now();
        let request = locks.lock(NAME).wait(SOON).outage_wait(SOON);
        let error = request.acquire().await.unwrap_err();
        assert!(!error.is_retryable(), "{url}: {error}");
        assert!(started.elapsed() < ms(1_500), "{:?}", started.elapsed());
        let eager = one_attempt(LockManager::builder()).connect(&url).await;
        assert_eq!(eager.unwrap_err().code(), error.code());
    }
}
