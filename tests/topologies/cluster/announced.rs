//! Nodes that announce addresses which only they can reach, as in containers.

use std::net::Ipv4Addr;

use lock_core::LockManager;
use lock_core::error::BackendErrorKind;
use test_support::fixtures::SOON;
use test_support::tls::shown;
use test_support::{Authority, Failover, Proxy, RedisCluster, RedisServer};
use tests::{backend_error_kind, one_attempt};
use topologies::connect;

use super::{KEY, NAME, acquired, other_primary};

/// The nodes announce host names that no resolver knows.
fn hidden() -> RedisCluster {
    RedisCluster::start_with(|at, options| {
        options
            .args(["--cluster-announce-hostname", &format!("node-{at}.invalid")])
            .args(["--cluster-preferred-endpoint-type", "hostname"])
    })
}

/// Returns the URL of one node.
fn one_seed(cluster: &RedisCluster) -> String {
    format!("redis+cluster://{}", cluster.nodes()[0].address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_names_are_reached_through_the_address_map() {
    let cluster = hidden();
    let ports: Vec<_> = cluster.nodes().iter().map(RedisServer::port).collect();
    let map = move |host: &str, _port: u16| {
        // The address of the URL, which is used as it is.
        if host == "127.0.0.1" {
            return Some(("nowhere.invalid".to_owned(), 1));
        }
        let number = host.strip_prefix("node-")?.strip_suffix(".invalid")?;
        let port = ports[number.parse::<usize>().ok()?];
        Some(("127.0.0.1".to_owned(), port))
    };
    let builder = one_attempt(LockManager::builder()).command_timeout(SOON);
    let builder = builder.address_map(map);
    let locks = builder.connect(&one_seed(&cluster)).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    // ASK, MOVED, and a slot map with another node.
    let to = other_primary(&cluster);
    cluster.begin_move(KEY, to);
    cluster.move_keys(&[KEY], to);
    held.renew().await.unwrap();
    cluster.end_move(KEY, to);
    held.renew().await.unwrap();
    cluster.failover(KEY, cluster.replica_of(to), Failover::Agreed);
    held.renew().await.unwrap();
    held.release().await.unwrap();
    acquired(&locks).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_an_announced_address_names_the_address_map() {
    let cluster = hidden();
    let locks = connect(&one_seed(&cluster)).await;
    let refused = locks.lock(NAME).try_acquire().await.unwrap_err();
    let text = refused.to_string();
    let kind = backend_error_kind(Err::<(), _>(refused));
    let is_expected = matches!(
        kind,
        BackendErrorKind::Unreachable | BackendErrorKind::TimedOut
    );
    assert!(is_expected, "{text}");
    for part in [
        ".invalid:",
        "(the cluster announced this address;",
        "set `address_map`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The map has the numbers of the nodes, which announce the host name `localhost`. The certificates are valid for
/// 127.0.0.1 only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_checked_against_the_mapped_host() {
    let authority = Authority::new();
    let cluster =
        RedisCluster::start_tls(&authority, &authority.server_at(Ipv4Addr::LOCALHOST.into()));
    let ports = cluster.nodes().iter().map(|node| node.tls_port().unwrap());
    let ports: Vec<_> = ports.collect();
    let url = |port: u16| {
        let ca = shown(&authority.ca());
        format!("rediss+cluster://127.0.0.1:{port}?ssl_ca_certs={ca}")
    };
    let connect = async |is_mapped: bool| {
        let builder = one_attempt(LockManager::builder()).command_timeout(SOON);
        let builder = builder.address_map(move |host, port| {
            let is_number = is_mapped && host == "127.0.0.1";
            is_number.then(|| (host.to_owned(), port))
        });
        builder.connect(&url(ports[0])).await.unwrap()
    };
    let held = connect(true).await.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    let refused = connect(false).await.lock(NAME).try_acquire().await;
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("localhost") && error.contains("set `address_map`"),
        "{error}"
    );
}

/// The map leads to a server that is no node of the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_a_wrong_pair_names_both_addresses() {
    let cluster = hidden();
    let other = RedisServer::start();
    let gone = Proxy::in_front_of(&other);
    gone.refuse();
    for (address, says) in [
        (
            other.address(),
            "does not belong to the cluster in use (`address_map` leads to this address)",
        ),
        (gone.address(), "(`address_map` leads to this address)"),
    ] {
        let builder = one_attempt(LockManager::builder());
        let map = move |host: &str, _port: u16| {
            let is_name = host.ends_with(".invalid");
            is_name.then(|| (address.ip().to_string(), address.port()))
        };
        let locks = builder.address_map(map).connect(&one_seed(&cluster)).await;
        let refused = locks.unwrap().lock(NAME).try_acquire().await.unwrap_err();
        let text = refused.to_string();
        let both = format!("{address} (announced as node-");
        assert!(text.contains(&both) && text.contains(says), "{text}");
    }
}
