//! Nodes that freeze, die, have another name, or lack what a manager needs.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use lock_core::config::Confirm;
use lock_core::error::BackendErrorKind;
use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockManager};
use test_support::tls::shown;
use test_support::{Authority, Failover, RedisCluster, RedisServer, eventually_async, lone_node};
use tests::{Trace, fencing_token, one_attempt};
use topologies::connect;

use super::{FAILOVER, KEY, NAME, acquired, other_primary, read_replica, start_waiter};

/// The certificates have names only, and redirections name numbers. The last ones name a node that is in no slot
/// map, because it had no slot before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirections_over_tls_lead_to_the_names_of_the_nodes() {
    let authority = Authority::new();
    let cluster = RedisCluster::start_tls(&authority, &authority.server_named("localhost"));
    let url = format!(
        "{}?ssl_ca_certs={}",
        cluster.tls_url(),
        shown(&authority.ca())
    );
    let other = other_primary(&cluster);
    let new = cluster.replica_of(other);
    cluster.detach(new);
    let locks = connect(&url).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    for to in [other, new] {
        cluster.begin_move(KEY, to);
        cluster.move_keys(&[KEY], to);
        held.renew().await.unwrap();
        cluster.end_move(KEY, to);
        held.renew().await.unwrap();
    }
    held.release().await.unwrap();
}

/// No connection opens in the meantime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_reported_while_connections_last() {
    let authority = Authority::new();
    let cluster = RedisCluster::start_tls(&authority, &authority.server_named("localhost"));
    // Three days are left a little after the manager has connected.
    let due = SystemTime::now() + Duration::from_secs(10);
    let client = authority.client_until(due + Duration::from_secs(3 * 24 * 3600));
    let url = format!(
        "{}?ssl_ca_certs={}&{}",
        cluster.tls_url(),
        shown(&authority.ca()),
        client.parameters()
    );
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let observer = move |event: &LockEvent<'_>| match event {
        LockEvent::Connected { .. } => seen.lock().unwrap().push("connected"),
        LockEvent::CertificateExpiresSoon { .. } => seen.lock().unwrap().push("expires"),
        _ => {}
    };
    let builder = LockManager::builder().observer(observer);
    let locks = builder.connect(&url).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    // A held lock would be renewed over another connection.
    held.release().await.unwrap();
    let reports = || {
        let events = events.lock().unwrap();
        events.iter().filter(|event| **event == "expires").count()
    };
    assert_eq!(reports(), 0, "more than three days are left");
    eventually_async(FAILOVER, async || reports() > 0).await;
    let last = events.lock().unwrap().last().copied();
    assert_eq!(
        last,
        Some("expires"),
        "no connection needed the certificate"
    );
}

/// The first nodes of the URL have to be mended by an operator, or are silent, and the last one serves.
#[tokio::test]
async fn healthy_node_of_the_url_is_found_behind_others() {
    let (trace, _collecting) = Trace::begin();
    let cluster = RedisCluster::start();
    let alone = RedisServer::start();
    let locked = RedisServer::options().password("other").start();
    let silent = [(); 4].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let unusable = [alone.address(), locked.address()].map(|it| it.to_string());
    let silent = silent
        .each_ref()
        .map(|it| it.local_addr().unwrap().to_string());
    let healthy = cluster.nodes()[0].address().to_string();
    let url = |hosts: &[&[String]]| format!("redis+cluster://{}", hosts.concat().join(","));
    let locks = connect(&url(&[&unusable, &silent, &[healthy]])).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    trace.assert_says("this node of the URL is not used");
    let refused = LockManager::connect(&url(&[&unusable])).await.unwrap_err();
    let text = refused.to_string();
    let [alone, locked] = unusable;
    for part in [
        alone.as_str(),
        &locked,
        "is not part of a Redis Cluster",
        "NOAUTH",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Leases of all nodes are renewed in one batch, and a node that is frozen does not delay the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_node_does_not_cost_the_locks_of_the_others() {
    const EACH: usize = 20;
    let cluster = RedisCluster::start();
    // The rest of the lease limits the renewals.
    let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER);
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let frozen = cluster.owner_of(KEY);
    let (mut of_frozen, mut of_others) = (Vec::new(), Vec::new());
    for name in (0..).map(|at| format!("n:{at}")) {
        let owner = cluster.owner_of(&format!("lock:{name}"));
        let names = if owner.port() == frozen.port() {
            &mut of_frozen
        } else {
            &mut of_others
        };
        if names.len() < EACH {
            names.push(name);
        } else if of_frozen.len() + of_others.len() == 2 * EACH {
            break;
        }
    }
    // At the same time, so that they are due in one batch.
    let mut acquiring = tokio::task::JoinSet::new();
    for names in of_frozen.into_iter().zip(of_others) {
        for (is_frozen, name) in [(true, names.0), (false, names.1)] {
            let request = locks.lock(name).ttl(Duration::from_secs(2));
            acquiring.spawn(async move { (is_frozen, request.acquire().await.unwrap()) });
        }
    }
    let held = acquiring.join_all().await;
    let (lost, kept): (Vec<_>, Vec<_>) = held.into_iter().partition(|(is_frozen, _)| *is_frozen);
    frozen.stop();
    eventually_async(FAILOVER, async || lost.iter().all(|(_, it)| it.is_lost())).await;
    let still_held = kept.iter().filter(|(_, it)| !it.is_lost()).count();
    assert_eq!(still_held, EACH);
    frozen.cont();
}

/// The slot map names the dead node until a replica has taken over. A call looks for the new owner meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_attempt_outlasts_a_failover() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER);
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    cluster.owner_of(KEY).kill9();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// A wrong epoch does not put the counter of a lock beyond any time, for all clients.
#[tokio::test]
async fn epoch_moves_the_tokens_by_two_days_at_most() {
    let node = lone_node();
    node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", "4000000000"]);
    let (trace, _collecting) = Trace::begin();
    let url = format!("redis+cluster://{}", node.address());
    for _ in 0..2 {
        let locks = connect(&url).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let ahead = Duration::from_micros(fencing_token(&held)).saturating_sub(now);
        let two_days = Duration::from_secs(48 * 60 * 60);
        assert!(
            ahead <= two_days && ahead > two_days - FAILOVER,
            "{ahead:?}"
        );
        held.release().await.unwrap();
    }
    // Once for each manager.
    let reports = trace.count("the epoch is 4000000000");
    assert_eq!(reports, 2, "{}", trace.text());
}

/// The epoch of a node is unknown after a while without calls. One caller asks for it when the node dies, and the other
/// one waits for that answer.
#[tokio::test]
async fn attempts_that_wait_for_the_epoch_of_a_dead_node_go_to_the_next_one() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER);
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let [one, other] = ["{order:42}:a", "{order:42}:b"];
    let held = locks.lock(one).acquire().await.unwrap();
    held.release().await.unwrap();
    tokio::time::sleep(Duration::from_secs(13)).await;
    cluster.owner_of("lock:{order:42}:a").kill9();
    let attempt = |name| locks.lock(name).acquire();
    let (one, other) = tokio::join!(attempt(one), attempt(other));
    for held in [one, other] {
        held.unwrap().release().await.unwrap();
    }
}

/// There are no notifications in RESP2, so nothing waits for a subscription.
#[tokio::test]
async fn ping_in_resp2_returns_at_once() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER);
    let url = format!("{}?protocol=2", cluster.url());
    let locks = builder.connect(&url).await.unwrap();
    let began = Instant::now();
    assert!(!locks.ping().await.unwrap().notifies_waiters);
    assert!(began.elapsed() < FAILOVER / 4, "{:?}", began.elapsed());
}

#[tokio::test]
async fn nodes_that_cannot_confirm_are_refused() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).confirm(Confirm::fsync());
    let error = builder.connect(&cluster.url()).await.unwrap_err();
    let LockError::Backend(backend) = &error else {
        panic!("{error}");
    };
    // Without WAITAOF, or without an append-only file.
    let kinds = [
        BackendErrorKind::Unsupported,
        BackendErrorKind::Misconfigured,
    ];
    assert!(kinds.contains(&backend.kind()), "{error}");
}

/// The new owner renews and releases the lock, and hands it over to the waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_lock_and_its_waiter_survive_a_failover() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    for kind in [Failover::Agreed, Failover::Force] {
        let held = acquired(&locks).await;
        let waiter = start_waiter(&locks).await;
        let owner = cluster.owner_of(KEY);
        let replica = cluster.replica_of(owner);
        // A forced failover does not wait for the last writes.
        let value = owner.cli(&["GET", KEY]);
        eventually_async(FAILOVER, async || read_replica(replica, KEY) == value).await;
        cluster.failover(KEY, replica, kind);
        eventually_async(FAILOVER, async || held.renew().await.is_ok()).await;
        let token = fencing_token(&held);
        held.release().await.unwrap();
        let next = waiter.await.unwrap().unwrap();
        assert!(fencing_token(&next) > token, "{kind:?}");
        next.release().await.unwrap();
        cluster.wait_stable();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_to_frozen_nodes_ends_in_time() {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        node.stop();
    }
    let timeout = Duration::from_millis(400);
    let builder = LockManager::builder().command_timeout(timeout);
    let began = Instant::now();
    let error = builder.connect(&cluster.url()).await.unwrap_err();
    assert!(began.elapsed() < 5 * timeout, "{:?}", began.elapsed());
    assert!(error.is_retryable(), "{error:?}");
    for node in cluster.nodes() {
        node.cont();
    }
}
