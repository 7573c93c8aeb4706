//! A primary with replicas, and the Sentinels that watch them.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::proxy::{Direction, Proxy};
use crate::replication;
use crate::server::{RedisServer, ServerOptions};
use crate::tls::{Authority, Certificate};
use crate::wait::{eventually, eventually_some};

/// The name of the service.
pub const SERVICE: &str = "mymaster";
/// The user and the password of the Sentinels at the servers.
const WATCHER: &str = "watcher";
/// Bound on a failover. On a loaded machine, Sentinels elect again and again, each ten seconds.
const FAILOVER: Duration = Duration::from_secs(90);

/// A primary, two replicas and three Sentinels. Dropping it stops all.
#[derive(Debug)]
pub struct SentinelService {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl SentinelService {
    /// Starts all, and waits until the Sentinels know the replicas and each other.
    pub fn start() -> Self {
        Self::start_with(|_, options| options)
    }

    /// As [`start`](Self::start). `change` gets the number of each server, the primary first, and its
    /// options.
    ///
    /// # Panics
    ///
    /// Panics if a server does not start.
    #[track_caller]
    pub fn start_with(change: impl Fn(usize, ServerOptions) -> ServerOptions) -> Self {
        Self::begin(change, |options| options)
    }

    /// As [`start`](Self::start), with TLS between all servers and Sentinels. The Sentinels name the servers' ports
    /// with TLS, and listen without it too.
    ///
    /// # Panics
    ///
    /// Panics if a server does not start.
    #[track_caller]
    pub fn start_tls(authority: &Authority, certificate: &Certificate) -> Self {
        let secured = |options: ServerOptions| {
            let options = options.tls(authority, certificate, false);
            options.args(["--tls-replication", "yes"])
        };
        Self::begin(|_, options| secured(options), secured)
    }

    #[track_caller]
    fn begin(
        change: impl Fn(usize, ServerOptions) -> ServerOptions,
        change_sentinel: impl Fn(ServerOptions) -> ServerOptions,
    ) -> Self {
        let options = || {
            let rights = ["~*", "&*", "+@all"];
            let options = RedisServer::options().args(["--user", WATCHER, "on"]);
            options.arg(format!(">{WATCHER}")).args(rights)
        };
        let mut servers = vec![change(0, options()).start()];
        let primary = known_port(&servers[0]);
        for number in 1..3 {
            let options = options().args(["--replicaof", "127.0.0.1", &primary.to_string()]);
            servers.push(change(number, options).start());
        }
        let sentinel = |_| change_sentinel(sentinel(primary)).start();
        let sentinels = (0..3).map(sentinel).collect();
        let service = Self { servers, sentinels };
        service.wait_ready();
        service
    }

    /// Returns the URL of the service.
    pub fn url(&self) -> String {
        url_of(self.sentinels.iter().map(RedisServer::address))
    }

    /// Returns the URL with TLS to the Sentinels and to the servers.
    ///
    /// # Panics
    ///
    /// Panics if the service has no TLS.
    #[track_caller]
    pub fn tls_url(&self) -> String {
        let port = |it: &RedisServer| it.tls_port().expect("start the service with TLS");
        let address = |it| (Ipv4Addr::LOCALHOST, port(it)).into();
        secured(&url_of(self.sentinels.iter().map(address)))
    }

    /// Returns the URL with TLS to the servers, and without it to the Sentinels.
    pub fn url_with_plain_sentinels(&self) -> String {
        format!("{}?sentinel_tls=false", secured(&self.url()))
    }

    /// Starts a proxy in front of each Sentinel. A client of the proxies does not learn of the Sentinels
    /// behind them.
    pub fn proxies(&self) -> Vec<Proxy> {
        let proxies: Vec<_> = self.sentinels.iter().map(Proxy::in_front_of).collect();
        let text = |port: u16| format!("\r\n{port}\r\n");
        for proxy in &proxies {
            for (sentinel, other) in self.sentinels.iter().zip(&proxies) {
                let (port, other) = (text(sentinel.port()), text(other.address().port()));
                proxy.replace(Direction::ToClient, port, other);
            }
        }
        proxies
    }

    /// Returns the URL of the service behind these proxies.
    pub fn url_through(&self, proxies: &[Proxy]) -> String {
        url_of(proxies.iter().map(Proxy::address))
    }

    /// Cuts a server off from the Sentinels and from its replicas. Clients still reach it.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[track_caller]
    pub fn isolate(&self, server: &RedisServer) {
        allow(server, &[WATCHER, "-@all"]);
        allow(server, &["default", "-psync", "-sync", "-replconf"]);
        let killed = server.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert!(killed.error().is_none(), "{killed:?}");
    }

    /// Undoes [`isolate`](Self::isolate).
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    #[track_caller]
    pub fn rejoin(&self, server: &RedisServer) {
        allow(server, &["default", "+psync", "+sync", "+replconf"]);
        allow(server, &[WATCHER, "+@all"]);
    }

    /// Cuts the replicas of a primary off: they get none of its writes until it restarts.
    ///
    /// # Panics
    ///
    /// Panics if they are still connected after 30 s.
    #[track_caller]
    pub fn cut_replication(&self, primary: &RedisServer) {
        replication::cut(primary);
    }

    /// Returns the primary and the replicas, in the order of their start.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the Sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Returns the server that most Sentinels name as the primary.
    ///
    /// # Panics
    ///
    /// Panics if no Sentinel names one of the servers.
    #[track_caller]
    pub fn primary(&self) -> &RedisServer {
        let ports = self.named_ports();
        let named = |port: u16| ports.iter().filter(|it| **it == port).count();
        let primary = self
            .servers
            .iter()
            .max_by_key(|server| named(server.port()));
        primary
            .filter(|it| named(it.port()) > 0)
            .expect("a Sentinel names the primary")
    }

    /// Waits until all Sentinels that reply name another primary than this one, and it is a primary.
    ///
    /// # Panics
    ///
    /// Panics if there is no failover within 90 s.
    #[track_caller]
    pub fn wait_for_switch(&self, old: u16) {
        eventually(FAILOVER, || {
            let ports = self.named_ports();
            let Some(new) = ports.first().filter(|port| **port != old) else {
                return false;
            };
            let server = self.servers.iter().find(|it| it.port() == *new);
            ports.iter().all(|port| port == new) && server.is_some_and(is_primary)
        });
    }

    /// Makes the Sentinels promote a replica, and waits for it.
    ///
    /// # Panics
    ///
    /// Panics if there is no failover within 90 s.
    #[track_caller]
    pub fn failover(&self) {
        let old = self.primary().port();
        eventually_some(FAILOVER, || {
            let reply = self.sentinels[0].cli(&["SENTINEL", "FAILOVER", SERVICE]);
            reply.error().is_none().then_some(())
        });
        self.wait_for_switch(old);
    }

    /// Returns the ports without TLS of the servers that the Sentinels name.
    fn named_ports(&self) -> Vec<u16> {
        let port_of = |known| {
            let server = self.servers.iter().find(|it| known_port(it) == known);
            server.map(RedisServer::port)
        };
        let named = self.sentinels.iter().filter_map(named_port);
        named.filter_map(port_of).collect()
    }

    #[track_caller]
    fn wait_ready(&self) {
        eventually(FAILOVER, || {
            self.sentinels.iter().all(|sentinel| {
                let known = sentinel.cli(&["SENTINEL", "MASTER", SERVICE]);
                let field = |name: &str| known.field(name).unwrap_or_default();
                field("num-slaves") == "2" && field("num-other-sentinels") == "2"
            })
        });
        eventually(FAILOVER, || {
            let info = self.servers[0].cli(&["INFO", "replication"]);
            info.text().matches("state=online").count() == 2
        });
    }
}

fn url_of(hosts: impl Iterator<Item = SocketAddr>) -> String {
    let hosts: Vec<_> = hosts.map(|it| it.to_string()).collect();
    format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
}

/// Changes the rights of a user.
#[track_caller]
fn allow(server: &RedisServer, rights: &[&str]) {
    let reply = server.cli(&[&["ACL", "SETUSER"], rights].concat());
    assert!(reply.error().is_none(), "{rights:?}: {reply:?}");
}

fn sentinel(primary: u16) -> ServerOptions {
    let config = format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {SERVICE} 1000\n\
         sentinel failover-timeout {SERVICE} 5000\n\
         sentinel auth-user {SERVICE} {WATCHER}\n\
         sentinel auth-pass {SERVICE} {WATCHER}\n"
    );
    RedisServer::options().sentinel(config)
}

/// Returns the port that the Sentinels know.
fn known_port(server: &RedisServer) -> u16 {
    server.tls_port().unwrap_or_else(|| server.port())
}

/// Returns a URL with TLS.
fn secured(url: &str) -> String {
    url.replacen("redis", "rediss", 1)
}

/// Returns the port of the primary as a Sentinel knows it. `GET-MASTER-ADDR-BY-NAME` names a replica that is promoted before the
/// Sentinel announces it.
fn named_port(sentinel: &RedisServer) -> Option<u16> {
    let reply = sentinel
        .connect()
        .and_then(|mut connection| connection.call(&["SENTINEL", "MASTER", SERVICE]));
    reply.ok()?.field("port")?.parse().ok()
}

fn is_primary(server: &RedisServer) -> bool {
    let reply = server
        .connect()
        .and_then(|mut connection| connection.call(&["ROLE"]));
    reply.is_ok_and(|role| {
        role.array()
            .first()
            .is_some_and(|role| role.text() == "master")
    })
}

/// Writes the configuration of a Sentinel, which it changes while it runs.
pub(crate) fn write_config(path: &std::path::Path, config: &str) {
    if !path.exists() {
        fs::write(path, config).expect("the scratch directory is writable");
    }
}
