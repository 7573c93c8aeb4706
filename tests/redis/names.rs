//! A name that leads to several servers, or to another one later.

use test_support::run_under_resolver;

/// The tests of [`followed`] need a resolver of their own, and so a process of their own.
#[test]
fn servers_are_followed_by_name() {
    run_under_resolver("names::followed");
}

mod followed {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use lock_core::error::BackendErrorKind;
    use lock_core::telemetry::LockEvent;
    use lock_core::{LockManager, LossReason};
    use test_support::fixtures::{KEY, LONG, NAME, SOON, exists, ms};
    use test_support::{MovableName, Proxy, RedisServer, eventually, eventually_async};
    use tests::{backend_error_kind, one_attempt};

    const FIRST: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    const HOUR: Duration = Duration::from_secs(3600);

    /// Two servers, and a name that leads to the first one.
    struct Fixture {
        servers: [RedisServer; 2],
        proxies: [Proxy; 2],
        name: MovableName,
        changes: Arc<AtomicUsize>,
        restrictions: Arc<AtomicUsize>,
    }

    impl Fixture {
        fn named(name: &str) -> Self {
            let servers = [RedisServer::start(), RedisServer::start()];
            let first = Proxy::in_front_of(&servers[0]);
            let second = first.beside(SECOND, &servers[1]);
            Self {
                servers,
                proxies: [first, second],
                name: MovableName::new(name, &[FIRST]),
                changes: Arc::default(),
                restrictions: Arc::default(),
            }
        }

        async fn connect(&self, resolve_interval: Duration) -> LockManager {
            let (changes, restrictions) =
                (Arc::clone(&self.changes), Arc::clone(&self.restrictions));
            one_attempt(LockManager::builder())
                .resolve_interval(resolve_interval)
                .observer(move |event: &LockEvent<'_>| {
                    let counter = match event {
                        LockEvent::PrimaryChanged { .. } => &changes,
                        LockEvent::ServerRestricted { .. } => &restrictions,
                        _ => return,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                })
                .connect(&self.url())
                .await
                .unwrap()
        }

        fn url(&self) -> String {
            self.name.url(self.proxies[0].address().port())
        }

        fn changes(&self) -> usize {
            self.changes.load(Ordering::Relaxed)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn lock_has_one_holder_after_its_name_has_moved() {
        let it = Fixture::named("moved");
        let locks = it.connect(ms(100)).await;
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let _foreign = it.servers[0].cli(&["SET", "lock:other", "foreign"]);
        let waiting = locks.lock("other").wait(SOON).acquire();
        let waiting = tokio::spawn(waiting);
        it.name.lead_to(&[SECOND]);
        eventually_async(SOON, async || held.is_lost()).await;
        assert_eq!(held.loss_reason(), Some(LossReason::ServerChanged));
        assert_eq!(it.changes(), 1);
        // A manager that begins now knows the new server only, as the first one does.
        let next = it.connect(ms(100)).await;
        let next = next.lock(NAME).acquire().await.unwrap();
        assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
        assert!(exists(&it.servers[1], KEY));
        next.release().await.unwrap();
        // Waiters wait at the new server.
        let other = waiting.await.unwrap().unwrap();
        assert!(exists(&it.servers[1], "lock:other"));
        other.release().await.unwrap();
        eventually(SOON, || it.proxies[0].open() == 0);
    }

    /// No interval ends in this test: the new connection finds that the old ones lead elsewhere.
    #[tokio::test]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn moved_name_is_noticed_when_a_connection_breaks() {
        let it = Fixture::named("broken");
        let locks = it.connect(HOUR).await;
        // The worker has a connection of its own once it has renewed.
        let held = locks.lock(NAME).ttl(ms(3_000)).acquire().await.unwrap();
        eventually_async(SOON, async || {
            let clients = it.servers[0].cli(&["CLIENT", "LIST"]);
            clients.text().matches("cmd=evalsha").count() == 2
        })
        .await;
        it.name.lead_to(&[SECOND]);
        it.proxies[0].cut(0);
        let next = locks.lock("other").wait(SOON).acquire().await.unwrap();
        assert!(exists(&it.servers[1], "lock:other"));
        eventually_async(SOON, async || held.is_lost()).await;
        assert_eq!(it.changes(), 1);
        next.release().await.unwrap();
    }

    /// No interval ends in this test, and no lock is due for its renewal.
    #[tokio::test]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn first_connection_to_another_server_moves_all_locks() {
        let it = Fixture::named("first-connection");
        let locks = it.connect(HOUR).await;
        let acquire = async |name| locks.lock(name).ttl(HOUR).acquire().await.unwrap();
        let held = [acquire(NAME).await, acquire("second").await];
        it.servers[0].kill9();
        eventually_async(SOON, async || it.proxies[0].open() == 0).await;
        it.name.lead_to(&[SECOND]);
        let next = locks.lock("other").wait(SOON).acquire().await.unwrap();
        assert!(exists(&it.servers[1], "lock:other"));
        for held in held {
            eventually_async(SOON, async || held.is_lost()).await;
            assert_eq!(held.loss_reason(), Some(LossReason::ServerChanged));
        }
        assert_eq!(it.changes(), 1);
        next.release().await.unwrap();
    }

    /// Nobody calls the manager in this test.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn moved_name_is_noticed_without_any_connection() {
        let it = Fixture::named("no-connection");
        let locks = it.connect(ms(50)).await;
        let held = locks.lock(NAME).ttl(HOUR).acquire().await.unwrap();
        it.servers[0].kill9();
        eventually_async(SOON, async || it.proxies[0].open() == 0).await;
        it.name.lead_to(&[SECOND]);
        eventually_async(SOON, async || held.is_lost()).await;
        assert_eq!(held.loss_reason(), Some(LossReason::ServerChanged));
        assert_eq!(it.changes(), 1);
    }

    /// The resolver names the same two addresses all the time.
    #[tokio::test]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn replica_that_takes_over_at_its_own_address_is_a_new_primary() {
        let it = Fixture::named("promoted");
        it.servers[1].cli(&["REPLICAOF", "127.0.0.1", "1"]);
        it.name.lead_to(&[FIRST, SECOND]);
        let locks = it.connect(HOUR).await;
        let held = locks.lock(NAME).ttl(HOUR).acquire().await.unwrap();
        it.servers[0].kill9();
        it.servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
        let next = locks.lock("other").wait(SOON).acquire().await.unwrap();
        eventually_async(SOON, async || held.is_lost()).await;
        assert_eq!(it.changes(), 1);
        next.release().await.unwrap();
    }

    #[tokio::test]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn restart_at_the_same_address_is_no_new_primary() {
        let it = Fixture::named("restarted");
        let locks = it.connect(ms(20)).await;
        let held = locks.lock(NAME).ttl(HOUR).acquire().await.unwrap();
        it.servers[0].kill9();
        it.servers[0].restart();
        let next = locks.lock("other").wait(SOON).acquire().await.unwrap();
        next.release().await.unwrap();
        assert!(!held.is_lost());
        held.renew().await.unwrap_err();
        assert_eq!(held.loss_reason(), Some(LossReason::ServerChanged));
        assert_eq!(it.changes(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn addresses_of_one_server_may_take_turns() {
        let it = Fixture::named("turns");
        it.proxies[1].lead_to(&it.servers[0]);
        let locks = it.connect(ms(20)).await;
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        it.name.lead_to(&[SECOND]);
        eventually(SOON, || it.proxies[1].accepted() >= 3);
        held.renew().await.unwrap();
        assert_eq!(it.changes(), 0);
        assert!(it.proxies[0].open() > 0);
        held.release().await.unwrap();
    }

    /// Nothing tells whether the new address leads to the same server, so it counts as another one, which confirms the lock.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn server_that_hides_its_run_id_counts_as_another_at_a_new_address() {
        let it = Fixture::named("hidden");
        it.proxies[1].lead_to(&it.servers[0]);
        let rights = ["~*", "&*", "+@all", "-info"];
        let words = [&["ACL", "SETUSER", "default", "on", "nopass"], &rights[..]].concat();
        assert_eq!(it.servers[0].cli(&words).error(), None);
        let locks = it.connect(ms(20)).await;
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        it.name.lead_to(&[SECOND]);
        eventually(SOON, || it.changes() == 1 && it.proxies[0].open() == 0);
        held.renew().await.unwrap();
        assert!(!held.is_lost());
        held.release().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn primary_is_kept_until_another_one_is_at_the_name() {
        let it = Fixture::named("kept");
        it.servers[1].cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let locks = it.connect(ms(20)).await;
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        // Some lookups fail.
        it.name.forget();
        tokio::time::sleep(ms(100)).await;
        it.name.lead_to(&[SECOND]);
        eventually(SOON, || it.proxies[1].accepted() >= 2);
        held.renew().await.unwrap();
        assert_eq!(it.changes(), 0);
        it.servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
        eventually_async(SOON, async || held.is_lost()).await;
        assert_eq!(it.changes(), 1);
    }

    #[tokio::test]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn primary_is_found_among_several_addresses() {
        let it = Fixture::named("several");
        it.servers[1].cli(&["REPLICAOF", "127.0.0.1", "1"]);
        for addresses in [[FIRST, SECOND], [SECOND, FIRST]] {
            it.name.lead_to(&addresses);
            let locks = it.connect(Duration::ZERO).await;
            let held = locks.lock(NAME).acquire().await.unwrap();
            assert!(exists(&it.servers[0], KEY));
            held.release().await.unwrap();
        }
        // Each address is named, also if all say the same.
        it.servers[0].cli(&["REPLICAOF", "127.0.0.1", "1"]);
        let refused = LockManager::connect(&it.url()).await.unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("127.0.0.1: ") && text.contains("127.0.0.2: "),
            "{text}"
        );
        it.servers[0].cli(&["REPLICAOF", "NO", "ONE"]);
        // An address that accepts connections and never replies takes only a part of the time.
        it.servers[1].stop();
        it.name.lead_to(&[SECOND, FIRST]);
        drop(it.connect(Duration::ZERO).await);
        // What another address has said is not hidden.
        it.servers[0].cli(&["CONFIG", "SET", "requirepass", "other"]);
        let refused = LockManager::connect(&it.url()).await.unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("NOAUTH") && text.contains("no answer in time"),
            "{text}"
        );
        let kind = backend_error_kind(Err::<(), _>(refused));
        assert_eq!(kind, BackendErrorKind::TimedOut);
        it.servers[1].cont();
        it.proxies[0].refuse();
        let refused = LockManager::connect(&it.url()).await.unwrap_err();
        let text = refused.to_string();
        for part in [
            "127.0.0.1: ",
            "127.0.0.2: ",
            "replica",
            "connection refused",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(
            backend_error_kind(Err::<(), _>(refused)),
            BackendErrorKind::NotPrimary
        );
    }

    /// The order of the addresses changes with each lookup.
    #[tokio::test]
    #[ignore = "`servers_are_followed_by_name` runs it"]
    async fn manager_stays_with_one_of_two_primaries() {
        let it = Fixture::named("two");
        it.name.lead_to(&[FIRST, SECOND]);
        let locks = it.connect(ms(20)).await;
        let held = locks.lock(NAME).ttl(ms(3_000)).acquire().await.unwrap();
        eventually_async(SOON, async || {
            let clients = it.servers[0].cli(&["CLIENT", "LIST"]);
            clients.text().matches("cmd=evalsha").count() == 2
        })
        .await;
        it.name.lead_to(&[SECOND, FIRST]);
        it.proxies[0].cut(0);
        let next = locks.lock("other").wait(SOON).acquire().await.unwrap();
        assert!(exists(&it.servers[0], "lock:other") && !held.is_lost());
        assert_eq!(it.restrictions.load(Ordering::Relaxed), 1);
        assert_eq!(it.changes(), 0);
        next.release().await.unwrap();
        held.release().await.unwrap();
    }
}
