//! `doctor HOST:PORT`: which URL leads to a server of which only the address is known.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use test_support::sentinel::SERVICE;
use test_support::stand_in::{Quirk, limits};
use test_support::tls::shown;
use test_support::{
    Authority, Proxy, RedisCluster, RedisServer, SentinelService, StandIn, lone_node,
};

use crate::program::{Lockctl, Outcome};

fn doctor(address: &str) -> Outcome {
    // A variable that leads nowhere: the address counts.
    Lockctl::new(&["doctor", address])
        .env("DISTRIBUTED_LOCK_URL", "redis://127.0.0.1:1")
        .run()
}

/// Checks that this URL is named, and that it passes.
#[track_caller]
fn names(address: &str, url: &str) {
    let outcome = doctor(address);
    let line = format!("\nok    url              use {url}\n");
    assert!(outcome.stdout.contains(&line), "{line}{outcome:#?}");
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
}

#[test]
fn url_of_one_server_is_found() {
    let authority = Authority::new();
    let server = RedisServer::options().tls(&authority, &authority.server(), false);
    let server = server.start();
    let plain = server.address().to_string();
    names(&plain, &format!("redis://{plain}"));
    let secured = server.tls_url().replace("rediss://", "");
    let parameters = format!("?ssl_ca_certs={}", shown(&authority.ca()));
    // The file is of no use without TLS.
    names(&format!("{plain}{parameters}"), &format!("redis://{plain}"));
    let with_file = format!("{secured}{parameters}");
    names(&with_file, &format!("rediss://{with_file}"));
    let outcome = doctor(&secured);
    assert_eq!(outcome.code, Some(78), "{outcome:?}");
    let end = format!("; the server speaks TLS: use rediss://{secured}\n");
    assert!(outcome.stderr.ends_with(&end), "{outcome:?}");
}

#[test]
fn url_of_a_cluster_names_several_primaries() {
    let cluster = RedisCluster::start();
    let node = cluster.owner_of("lock:a").address().to_string();
    let outcome = doctor(&node);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let url = |line: &str| {
        let url = line.strip_prefix("ok    url              use redis+cluster://")?;
        Some(url.split(',').map(str::to_owned).collect::<Vec<_>>())
    };
    let hosts = outcome.stdout.lines().find_map(url);
    let mut hosts = hosts.unwrap_or_else(|| panic!("{outcome:#?}"));
    assert_eq!((hosts.len(), &hosts[0]), (3, &node), "{hosts:?}");
    hosts.sort_unstable();
    hosts.dedup();
    assert_eq!(hosts.len(), 3, "{hosts:?}");
    // A cluster of one.
    let alone = lone_node();
    let alone = alone.address().to_string();
    names(&alone, &format!("redis+cluster://{alone}"));
}

#[test]
fn url_of_a_sentinel_names_its_service_and_the_other_sentinels() {
    let service = SentinelService::start();
    let addresses = service
        .sentinels()
        .iter()
        .map(|it| it.address().to_string());
    let addresses: Vec<_> = addresses.collect();
    let outcome = doctor(&addresses[1]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let begin = format!(
        "ok    url              use redis+sentinel://{},",
        addresses[1]
    );
    let mut lines = outcome.stdout.lines();
    let line = lines.find(|line| line.starts_with(&begin));
    let line = line.unwrap_or_else(|| panic!("{outcome:#?}"));
    assert!(line.ends_with(&format!("/{SERVICE}")), "{line}");
    assert!(addresses.iter().all(|it| line.contains(it)), "{line}");

    let port = service.primary().port().to_string();
    let monitor = ["SENTINEL", "MONITOR", "second", "127.0.0.1", &port, "2"];
    service.sentinels()[1].cli(&monitor);
    let outcome = doctor(&addresses[1]);
    assert_eq!(outcome.code, Some(78), "{outcome:?}");
    let end = format!(
        "name one in the URL, as redis+sentinel://{}/SERVICE\n",
        addresses[1]
    );
    assert!(outcome.stderr.ends_with(&end), "{outcome:?}");
    assert!(outcome.stderr.contains("second"), "{outcome:?}");
}

#[test]
fn server_that_wants_a_password_names_the_url_with_one() {
    let server = RedisServer::options().password("secret").start();
    let address = server.address().to_string();
    let outcome = doctor(&address);
    assert_eq!(outcome.code, Some(77), "{outcome:?}");
    let end = format!("; use redis://USER:PASSWORD@{address}\n");
    assert!(outcome.stderr.ends_with(&end), "{outcome:?}");
    let outcome = doctor(&format!(":secret@{address}"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let line = format!("\nok    url              use redis://USER:PASSWORD@{address}\n");
    assert!(outcome.stdout.contains(&line), "{outcome:?}");
    assert!(!outcome.stdout.contains("secret"), "{outcome:?}");
    // As for a URL in the arguments.
    let warning = "lockctl: warning: the password is visible in the process list";
    assert!(outcome.stderr.starts_with(warning), "{outcome:?}");
}

/// The plain way is tried at the same time, so its bytes reach whoever reads the network.
#[test]
fn password_for_a_server_with_tls_is_never_sent_in_plain_text() {
    let authority = Authority::new();
    let server = RedisServer::options().password("secret");
    let server = server.tls(&authority, &authority.server(), false).start();
    let proxy = Proxy::in_front_of_tls(&server);
    proxy.record();
    let ca = format!("?ssl_ca_certs={}", shown(&authority.ca()));
    // The second run fails, since it trusts no authority.
    for (parameters, code) in [(ca.as_str(), 0), ("", 78)] {
        let outcome = doctor(&format!(":secret@{}{parameters}", proxy.address()));
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
    }
    for connection in 0..proxy.accepted() {
        let sent = proxy.requests(connection);
        let sent = String::from_utf8_lossy(&sent);
        assert!(!sent.contains("secret"), "{connection}: {sent}");
    }
}

/// A server without TLS may reply to a handshake with an error.
#[test]
fn plain_server_that_refuses_clients_is_not_taken_for_one_with_tls() {
    let server = RedisServer::start();
    let quirk = Quirk::RefusesClients(limits::CLIENTS.to_owned());
    let stand_in = StandIn::start(&server, [quirk]);
    let outcome = doctor(&stand_in.address().to_string());
    assert_eq!(outcome.code, Some(69), "{outcome:?}");
    assert!(!outcome.stderr.contains("speaks TLS: use"), "{outcome:?}");
}

#[test]
fn address_that_cannot_be_used_has_the_error_of_the_library() {
    // Accepts connections and says nothing.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent: SocketAddr = silent.local_addr().unwrap();
    let closed = RedisServer::start();
    closed.kill9();
    for (address, code, text) in [
        (closed.address().to_string(), 69, "connection refused"),
        (silent.to_string(), 69, "no answer in time"),
        ("redis://h".to_owned(), 64, "the address has a scheme"),
        ("h:port".to_owned(), 78, "port"),
    ] {
        let outcome = doctor(&address);
        assert_eq!(outcome.code, Some(code), "{address}: {outcome:?}");
        assert!(outcome.stderr.contains(text), "{address}: {outcome:?}");
    }
    let both = ["doctor", "h:1", "--url", "redis://h"];
    let outcome = Lockctl::new(&both).run();
    assert_eq!(outcome.code, Some(64), "{outcome:?}");
}
