//! Addresses that the Sentinels tell, and that the client reaches elsewhere.

use lock_core::LockManager;
use lock_core::config::ManagerConfig;
use test_support::{Proxy, RedisServer, SentinelService, eventually_async};
use tests::one_attempt;

use super::{NAME, NOTICE, acquired};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_addresses_are_reached_through_the_address_map() {
    let service = SentinelService::start();
    let published = |server: &RedisServer| (server.port(), Proxy::in_front_of(server));
    let servers: Vec<_> = service.servers().iter().map(published).collect();
    let [of_url, others @ ..] = service.sentinels() else {
        panic!("there are three");
    };
    let others: Vec<_> = others.iter().map(published).collect();
    let mut config = ManagerConfig::default();
    let pairs = servers.iter().chain(&others);
    config.address_map = pairs
        .map(|(port, proxy)| (format!("127.0.0.1:{port}"), proxy.address().to_string()))
        .collect();
    // The address of the URL is used as it is.
    let of_url_text = of_url.address().to_string();
    config
        .address_map
        .insert(of_url_text, "nowhere.invalid:1".into());
    let builder = one_attempt(LockManager::builder()).config(config);
    let url = format!("redis+sentinel://{}/mymaster", of_url.address());
    let locks = builder.connect(&url).await.unwrap();
    locks
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let are_used = || -> Vec<_> {
        let used = servers.iter().filter(|(_, proxy)| proxy.accepted() > 0);
        used.map(|(port, _)| *port).collect()
    };
    let old = service.primary().port();
    assert_eq!(are_used(), [old]);
    eventually_async(NOTICE, async || {
        others.iter().all(|(_, proxy)| proxy.accepted() > 0)
    })
    .await;
    service.failover();
    acquired(&locks, NAME).await.release().await.unwrap();
    let new = service.primary().port();
    assert!(new != old && are_used().contains(&new), "{:?}", are_used());
}
