//! Sentinels that are learned from others, that have two addresses, or that lie.

use std::time::{Duration, Instant};

use test_support::{Direction, Proxy, RedisServer, SentinelService, eventually_async};
use tests::fencing_token;
use topologies::connect;

use super::{FAILOVER, NAME, NOTICE, acquired};

/// A manager asks each Sentinel twice meanwhile.
const QUESTIONS: Duration = Duration::from_millis(2_500);

/// Returns a URL of Sentinels at other addresses than those that they announce.
fn url_of(proxies: &[Proxy]) -> String {
    let hosts: Vec<_> = proxies.iter().map(|it| it.address().to_string()).collect();
    format!("redis+sentinel://{}/mymaster", hosts.join(","))
}

/// Returns the last commands of the managers that watch a Sentinel.
fn commands_of_watchers(sentinel: &RedisServer) -> Vec<String> {
    let clients = sentinel.cli(&["CLIENT", "LIST"]);
    let watchers = clients
        .text()
        .lines()
        .filter(|line| line.contains(" sub=1 "));
    let command = |line: &str| Some(line.split_once(" cmd=")?.1.split(' ').next()?.to_owned());
    watchers.filter_map(command).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_not_in_the_url_are_learned() {
    let service = SentinelService::start();
    let [named, others @ ..] = service.sentinels() else {
        panic!("there are three");
    };
    let url = format!("redis+sentinel://{}/mymaster", named.address());
    let locks = connect(&url).await;
    eventually_async(NOTICE, async || {
        others.iter().all(|it| !commands_of_watchers(it).is_empty())
    })
    .await;
    named.kill9();
    let old = service.primary();
    old.kill9();
    service.wait_for_switch(old.port());
    acquired(&locks, NAME).await.release().await.unwrap();
}

/// The addresses of the URL do not reply any more, for example because a name has gone. They must not count against
/// the majority, which a lower epoch needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_with_two_addresses_counts_once() {
    let service = SentinelService::start();
    let proxies: Vec<_> = service.sentinels().iter().map(Proxy::in_front_of).collect();
    for proxy in &proxies {
        let (epoch, higher) = ("config-epoch\r\n$1\r\n0", "config-epoch\r\n$1\r\n7");
        proxy.replace(Direction::ToClient, epoch, higher);
    }
    let locks = connect(&url_of(&proxies)).await;
    let held = acquired(&locks, NAME).await;
    held.release().await.unwrap();
    // From the second time on, the manager does not ask for the run id. Before Redis 7, the list of clients has no
    // subcommands.
    eventually_async(NOTICE, async || {
        service.sentinels().iter().all(|sentinel| {
            let commands = commands_of_watchers(sentinel);
            let is_old = sentinel.is_before((7, 0));
            commands
                .iter()
                .any(|it| it == "sentinel|sentinels" || (is_old && it == "sentinel"))
        })
    })
    .await;
    for proxy in &proxies {
        proxy.refuse();
        proxy.cut_all();
    }
    let old = service.primary();
    old.kill9();
    service.wait_for_switch(old.port());
    acquired(&locks, NAME).await.release().await.unwrap();
}

/// One Sentinel names the old primary with the old epoch, for the whole time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_that_lies_is_not_believed() {
    let service = SentinelService::start();
    let [liar, honest @ ..] = service.sentinels() else {
        panic!("there are three");
    };
    let old = service.primary();
    let pair = |port: u16| {
        let length = port.to_string().len();
        format!("*2\r\n$9\r\n127.0.0.1\r\n${length}\r\n{port}\r\n")
    };
    let lying = Proxy::in_front_of(liar);
    let to_client = Direction::ToClient;
    for epoch in 1..10 {
        let truth = format!("config-epoch\r\n$1\r\n{epoch}");
        lying.replace(to_client, truth, "config-epoch\r\n$1\r\n0");
    }
    for server in service.servers() {
        lying.replace(to_client, pair(server.port()), pair(old.port()));
    }
    let hosts: Vec<_> = honest.iter().map(|it| it.address().to_string()).collect();
    let url = format!(
        "redis+sentinel://{},{}/mymaster",
        lying.address(),
        hosts.join(",")
    );
    let before = connect(&url).await;
    let held = acquired(&before, NAME).await;
    let first = fencing_token(&held);
    held.release().await.unwrap();
    service.failover();
    let new = service.primary();
    let has_key = || new.cli(&["EXISTS", "lock:order:42"]).integer() == 1;
    let mut last = first;
    for locks in [before, connect(&url).await] {
        // A manager that connected before learns of the new primary within a moment.
        eventually_async(FAILOVER, async || {
            let held = acquired(&locks, NAME).await;
            let (token, is_at_new) = (fencing_token(&held), has_key());
            assert!(token > last, "{token} after {last}");
            last = token;
            let _late = held.release().await;
            is_at_new
        })
        .await;
        // And it stays there, while it asks the one that lies again and again.
        let began = Instant::now();
        while began.elapsed() < QUESTIONS {
            let held = acquired(&locks, NAME).await;
            assert!(has_key());
            held.release().await.unwrap();
        }
    }
}
