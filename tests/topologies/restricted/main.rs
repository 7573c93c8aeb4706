//! The guide's rights, the example `orders` and slow networks on each topology.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use lock_core::LockManager;
use lock_core::config::Confirm;
use test_support::fixtures::SOON;
use test_support::guide::{acl_command, acl_command_for_clusters, acl_command_for_sentinels};
use test_support::tls::shown;
use test_support::{
    Authority, FrozenClock, Process, RedisCluster, RedisServer, Reply, Scratch, SentinelService,
    eventually_some,
};
use tests::{example, granted, shut_down};

mod protocol;
mod slow_network;

const NAME: &str = "order:42";

/// Five servers that have run for two minutes, as their clock says: none is in quarantine.
fn old_servers() -> Vec<RedisServer> {
    const MINUTES: i64 = 120_000_000;
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let clock = FrozenClock::at(u64::try_from(now).unwrap());
    clock.run_ahead_by(0);
    let start = |_| RedisServer::options().clock(&clock).start();
    let servers: Vec<_> = (0..5).map(start).collect();
    clock.run_ahead_by(MINUTES);
    servers
}

fn quorum_url(login: &str, servers: &[RedisServer]) -> String {
    let hosts: Vec<_> = servers.iter().map(|it| it.address().to_string()).collect();
    format!("redis+quorum://{login}{}", hosts.join(","))
}

/// An instance of the example, and the address at which it listens.
fn orders(url: &str, ledger: &Scratch) -> (Process, String) {
    let program = example("orders")
        .arg("--redis")
        .arg(url)
        .arg("--bank")
        .arg("100")
        .arg("--ledger")
        .arg(ledger.path().join("orders"));
    let process = program.spawn();
    let address = eventually_some(SOON, || {
        let lines = process.lines();
        let address = lines.first()?.strip_prefix("listening on http://")?;
        Some(address.to_owned())
    });
    (process, address)
}

/// Sends a payment, and returns the status of the reply.
fn pay(address: &str, order: u32) -> u16 {
    let mut stream = TcpStream::connect(address).expect("the instance listens");
    write!(
        stream,
        "POST /orders/{order}/payment HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n"
    )
    .expect("the instance reads");
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .expect("the instance replies");
    let status = reply.split(' ').nth(1).and_then(|code| code.parse().ok());
    status.expect("a status line")
}

/// Two instances get four requests for each order, and make one payment.
#[track_caller]
fn assert_orders_are_paid_once(url: &str) {
    const REQUESTS: usize = 4;
    let ledger = Scratch::new();
    let instances = [orders(url, &ledger), orders(url, &ledger)];
    for order in 1..=2 {
        let start = Barrier::new(REQUESTS);
        let mut replies: Vec<u16> = thread::scope(|scope| {
            let requests: Vec<_> = (0..REQUESTS)
                .map(|number| {
                    let (start, (_, address)) = (&start, &instances[number % 2]);
                    scope.spawn(move || {
                        start.wait();
                        pay(address, order)
                    })
                })
                .collect();
            requests.into_iter().map(|it| it.join().unwrap()).collect()
        });
        replies.sort_unstable();
        assert_eq!(replies, [200, 409, 409, 409]);
    }
    let paid = std::fs::read_to_string(ledger.path().join("orders")).unwrap();
    assert_eq!(paid.lines().count(), 2, "{paid}");
}

#[test]
fn orders_are_paid_once_over_tls() {
    let authority = Authority::new();
    let options = RedisServer::options().tls(&authority, &authority.server(), true);
    let server = options.start();
    let client = authority.client().parameters();
    let ca = shown(&authority.ca());
    let url = format!("{}?ssl_ca_certs={ca}&{client}", server.tls_url());
    assert_orders_are_paid_once(&url);
}

#[test]
fn orders_are_paid_once_behind_sentinels() {
    assert_orders_are_paid_once(&SentinelService::start().url());
}

#[test]
fn orders_are_paid_once_in_a_cluster() {
    assert_orders_are_paid_once(&RedisCluster::start().url());
}

#[test]
fn orders_are_paid_once_at_a_quorum() {
    assert_orders_are_paid_once(&quorum_url("", &old_servers()));
}

/// Creates a user, or gives it more rights.
#[track_caller]
fn set_user<'a>(servers: impl IntoIterator<Item = &'a RedisServer>, command: &[String]) {
    for server in servers {
        assert_eq!(server.cli(command), Reply::Status("OK".into()));
    }
}

/// The servers log every command that they refused.
#[track_caller]
fn assert_nothing_was_refused<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) {
    for server in servers {
        assert_eq!(server.denied(), []);
    }
}

/// Acquires, renews, tries, waits and releases.
async fn use_locks(connect: impl AsyncFn() -> LockManager) {
    let (here, there) = (connect().await, connect().await);
    let guard = here.lock(NAME).acquire().await.unwrap();
    guard.renew().await.unwrap();
    assert!(there.lock(NAME).try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(there.lock(NAME).wait(SOON).acquire());
    // The call queues and subscribes, or polls.
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
    shut_down(&here).await;
    shut_down(&there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_for_clusters_are_sufficient() {
    let cluster = RedisCluster::start();
    set_user(cluster.nodes(), &acl_command("locks"));
    set_user(cluster.nodes(), &acl_command_for_clusters());
    let url = cluster.url().replace("://", "://locks:secret@");
    use_locks(async || LockManager::connect(&url).await.unwrap()).await;
    assert_nothing_was_refused(cluster.nodes());
    // With a confirmation, one right more.
    let more = ["ACL", "SETUSER", "locks", "+wait"].map(str::to_owned);
    set_user(cluster.nodes(), &more);
    let confirmed = || LockManager::builder().confirm(Confirm::replicas(1));
    use_locks(async || confirmed().connect(&url).await.unwrap()).await;
    assert_nothing_was_refused(cluster.nodes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_for_sentinels_are_sufficient() {
    let service = SentinelService::start();
    set_user(service.servers(), &acl_command("locks"));
    set_user(service.sentinels(), &acl_command_for_sentinels());
    let url = service.url().replace("://", "://locks:secret@");
    let url = format!("{url}?sentinel_username=watcher&sentinel_password=other");
    use_locks(async || LockManager::connect(&url).await.unwrap()).await;
    assert_nothing_was_refused(service.servers());
    assert_nothing_was_refused(service.sentinels());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_for_one_server_are_sufficient_at_a_quorum() {
    let servers = old_servers();
    set_user(&servers, &acl_command("locks"));
    let url = quorum_url("locks:secret@", &servers);
    use_locks(async || LockManager::connect(&url).await.unwrap()).await;
    assert_nothing_was_refused(&servers);
}
