//! Locks that replicas have to acknowledge, while replicas stop, come back, and become the primary.

use std::time::Duration;

use lock_core::config::Confirm;
use lock_core::dialect::{Dialect, ReleaseMethod};
use lock_core::error::{BackendErrorKind, InvalidSetting};
use lock_core::{LockError, LockManager, LockManagerBuilder};
use test_support::fixtures::SOON;
use test_support::{RedisCluster, RedisServer, SentinelService, eventually_async};
use tests::{fencing_token, one_attempt};

const NAME: &str = "order:42";
const KEY: &str = "lock:order:42";
/// Bound on a wait, on a loaded machine.
const WAIT: Duration = Duration::from_secs(30);
const WITHIN: Duration = Duration::from_millis(800);

/// A primary with two replicas.
struct Replicated {
    primary: RedisServer,
    replicas: [RedisServer; 2],
}

impl Replicated {
    async fn start() -> Self {
        let replicated = Self {
            primary: RedisServer::start(),
            replicas: [RedisServer::start(), RedisServer::start()],
        };
        let port = replicated.primary.port().to_string();
        for replica in &replicated.replicas {
            replica.cli(&["REPLICAOF", "127.0.0.1", &port]);
        }
        replicated.wait_for_replicas().await;
        replicated
    }

    /// Waits until both replicas acknowledge writes.
    async fn wait_for_replicas(&self) {
        let locks = self.connect(2).await;
        eventually_async(WAIT, async || {
            match locks.lock("first").try_acquire().await {
                Ok(Some(held)) => held.release().await.is_ok(),
                _ => false,
            }
        })
        .await;
    }

    async fn try_connect(
        &self,
        change: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Result<LockManager, LockError> {
        let builder = one_attempt(LockManager::builder());
        change(builder).connect(&self.primary.url()).await
    }

    async fn connect(&self, replicas: u32) -> LockManager {
        let confirm = Confirm::replicas(replicas).within(WITHIN);
        let connected = self.try_connect(|it| it.confirm(confirm)).await;
        connected.expect("the servers run")
    }

    fn has_key(&self) -> bool {
        self.primary.cli(&["EXISTS", KEY]).integer() == 1
    }
}

fn kind(error: &LockError) -> BackendErrorKind {
    match error {
        LockError::Backend(error) => error.kind(),
        other => panic!("expected a backend error: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn granted_lock_is_on_all_replicas() {
    let replicated = Replicated::start().await;
    let locks = replicated.connect(2).await;
    for _ in 0..20 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let token = format!(" {} ", fencing_token(&held));
        for replica in &replicated.replicas {
            let value = replica.cli(&["GET", KEY]);
            assert!(value.text().contains(&token), "{value:?}");
        }
        held.renew().await.unwrap();
        held.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_give_no_lock_and_keep_no_key() {
    let replicated = Replicated::start().await;
    let (one, two) = (replicated.connect(1).await, replicated.connect(2).await);
    replicated.replicas[0].stop();
    let error = two.lock(NAME).try_acquire().await.unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::NotReplicated);
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(text.contains("1 of 2 replicas"), "{text}");
    eventually_async(SOON, async || !replicated.has_key()).await;
    let held = one.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    let error = two.lock(NAME).wait(Duration::from_secs(1)).acquire().await;
    assert_eq!(kind(&error.unwrap_err()), BackendErrorKind::NotReplicated);
    eventually_async(SOON, async || !replicated.has_key()).await;
}

/// The replica runs, and follows another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_replication_gives_no_lock_and_keeps_no_key() {
    let replicated = Replicated::start().await;
    let locks = replicated.connect(2).await;
    let cut = &replicated.replicas[0];
    let port = replicated.primary.port().to_string();
    cut.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::NotReplicated, "{error}");
    eventually_async(SOON, async || !replicated.has_key()).await;
    cut.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// `WAIT` holds up its own connection only.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn confirmation_does_not_delay_other_commands() {
    let replicated = Replicated::start().await;
    let slow = Confirm::replicas(2).within(Duration::from_millis(900));
    let locks = replicated.try_connect(|it| it.confirm(slow)).await.unwrap();
    locks
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    replicated.replicas[0].stop();
    let confirming = tokio::spawn(locks.lock(NAME).try_acquire());
    eventually_async(SOON, async || replicated.has_key()).await;
    // Behind the WAIT, one command would get its reply before it ends, and not many.
    let mut replies = 0;
    while !confirming.is_finished() {
        locks.admin().inspect("order:43").await.unwrap();
        replies += 1;
    }
    assert!(replies > 20, "{replies}");
    let error = confirming.await.unwrap().unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::NotReplicated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_call_gets_the_lock_when_the_replicas_are_back() {
    let replicated = Replicated::start().await;
    let locks = replicated.connect(2).await;
    replicated.replicas[1].stop();
    let waiting = tokio::spawn(locks.lock(NAME).wait(WAIT).acquire());
    tokio::time::sleep(WITHIN * 2).await;
    assert!(!waiting.is_finished());
    replicated.replicas[1].cont();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A notification grants the lock; it counts from its confirmation on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handed_over_lock_waits_for_the_replicas_too() {
    let replicated = Replicated::start().await;
    let locks = replicated.connect(2).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).wait(WAIT).acquire());
    eventually_async(SOON, async || {
        let seen = locks.admin().inspect(NAME).await.unwrap();
        seen.waiters_total == 1
    })
    .await;
    for replica in &replicated.replicas {
        replica.stop();
    }
    held.release().await.unwrap();
    tokio::time::sleep(WITHIN * 3).await;
    assert!(!waiting.is_finished(), "no replica has the lock");
    for replica in &replicated.replicas {
        replica.cont();
    }
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_without_replicas_lose_the_lock_at_the_end_of_its_lease() {
    let replicated = Replicated::start().await;
    let locks = replicated.connect(1).await;
    let ttl = Duration::from_secs(2);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    tokio::time::sleep(ttl * 2).await;
    assert!(!held.is_lost(), "it is renewed");
    for replica in &replicated.replicas {
        replica.stop();
    }
    let error = held.renew().await.unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::NotReplicated);
    assert!(!held.is_lost(), "its lease has not ended");
    let lost = tokio::time::timeout(ttl + SOON, held.lost()).await;
    assert!(lost.is_ok() && held.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acquires_at_the_same_time_share_the_wait() {
    const COUNT: i64 = 200;
    let replicated = Replicated::start().await;
    let locks = replicated.connect(2).await;
    let mut tasks = Vec::new();
    for number in 0..COUNT {
        tasks.push(tokio::spawn(locks.lock(format!("a:{number}")).acquire()));
    }
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap().unwrap());
    }
    let stats = replicated.primary.cli(&["INFO", "commandstats"]);
    let waits = stats
        .text()
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls="))
        .and_then(|line| line.split(',').next()?.parse::<i64>().ok());
    let waits = waits.expect("the server counts WAIT");
    assert!(0 < waits && waits < COUNT / 2, "{waits}");
}

/// The caller that runs the batch may be dropped; the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropped_callers_hold_up_nobody_and_leave_no_lock() {
    let replicated = Replicated::start().await;
    let locks = replicated.connect(2).await;
    for round in 0..20_u64 {
        let mut dropped = Vec::new();
        for number in 0..5_u64 {
            let locks = locks.clone();
            dropped.push(tokio::spawn(async move {
                let acquiring = locks.lock(format!("dropped:{number}")).acquire();
                let limit = Duration::from_micros(100 * (round + number));
                let _dropped = tokio::time::timeout(limit, acquiring).await;
            }));
        }
        let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
        held.release().await.unwrap();
        for task in dropped {
            task.await.unwrap();
        }
    }
    eventually_async(SOON, async || {
        let keys = replicated.primary.cli(&["KEYS", "lock:*"]);
        matches!(&keys, test_support::Reply::Array(keys) if keys.is_empty())
    })
    .await;
}

/// All tasks are on one thread, so that they queue for the connection in the order of their start. The second one gets
/// its turn when it has too little time left for a confirmation, and the third one has enough.
#[tokio::test]
async fn caller_with_little_time_fails_no_other_confirmation() {
    let replicated = Replicated::start().await;
    let within = Duration::from_millis(1500);
    let confirm = Confirm::replicas(2).within(within);
    let connecting = replicated.try_connect(|it| it.confirm(confirm).command_timeout(WAIT));
    let locks = connecting.await.unwrap();
    replicated.replicas[0].stop();
    let has = |name: &str| {
        let key = format!("lock:{name}");
        replicated.primary.cli(&["EXISTS", &key]).integer() == 1
    };
    let first = tokio::spawn(locks.lock("first").try_acquire());
    eventually_async(SOON, async || {
        let clients = replicated.primary.cli(&["INFO", "clients"]);
        clients.text().contains("blocked_clients:1")
    })
    .await;
    let hasty = tokio::spawn(locks.lock("hasty").wait(within + within / 2).acquire());
    eventually_async(SOON, async || has("hasty")).await;
    let patient = tokio::spawn(locks.lock("patient").try_acquire());
    eventually_async(SOON, async || has("patient")).await;
    let error = first.await.unwrap().unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::NotReplicated, "{error}");
    hasty.await.unwrap().unwrap_err();
    replicated.replicas[0].cont();
    let held = patient.await.unwrap().unwrap();
    held.expect("it is free").release().await.unwrap();
}

/// With all replicas, a confirmed lock survives the failover to any of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_lock_survives_the_death_of_its_primary() {
    let service = SentinelService::start();
    let builder = || one_attempt(LockManager::builder()).confirm(Confirm::replicas(2));
    let locks = builder().connect(&service.url()).await.unwrap();
    let request = locks.lock(NAME).ttl(Duration::from_secs(60));
    let held = request.acquire().await.unwrap();
    let old = service.primary();
    old.kill9();
    service.wait_for_switch(old.port());
    let plain = one_attempt(LockManager::builder());
    let plain = plain.connect(&service.url()).await.unwrap();
    let mut seen = Err(LockError::NoRuntime);
    eventually_async(WAIT, async || {
        seen = plain.lock(NAME).try_acquire().await;
        seen.is_ok()
    })
    .await;
    assert!(seen.unwrap().is_none(), "the new primary knows the lock");
    assert!(!held.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_lock_survives_the_death_of_its_node() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).confirm(Confirm::replicas(1));
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let request = locks.lock(NAME).ttl(Duration::from_secs(60)).wait(WAIT);
    let held = request.acquire().await.unwrap();
    let old = cluster.owner_of(KEY);
    let new = cluster.replica_of(old);
    old.kill9();
    cluster.wait_for_owner(KEY, new);
    let mut seen = Err(LockError::NoRuntime);
    let plain = one_attempt(LockManager::builder());
    let plain = plain.connect(&cluster.url()).await.unwrap();
    eventually_async(WAIT, async || {
        seen = plain.lock(NAME).try_acquire().await;
        seen.is_ok()
    })
    .await;
    assert!(seen.unwrap().is_none(), "the new primary knows the lock");
    assert!(!held.is_lost());
}

/// The server of the tests may be older than `WAITAOF`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_confirms_where_the_server_can() {
    let replicated = Replicated::start().await;
    let connect = || replicated.try_connect(|it| it.confirm(Confirm::fsync().within(WITHIN)));
    let error = connect().await.unwrap_err();
    if kind(&error) == BackendErrorKind::Unsupported {
        assert!(error.to_string().contains("7.2"), "{error}");
        return;
    }
    assert_eq!(kind(&error), BackendErrorKind::Misconfigured);
    assert!(error.to_string().contains("appendonly yes"), "{error}");
    replicated
        .primary
        .cli(&["CONFIG", "SET", "appendfsync", "always"]);
    replicated
        .primary
        .cli(&["CONFIG", "SET", "appendonly", "yes"]);
    let locks = connect().await.unwrap();
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    // An operator turns it off while the manager lives.
    replicated
        .primary
        .cli(&["CONFIG", "SET", "appendonly", "no"]);
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::Misconfigured, "{error}");
    eventually_async(SOON, async || !replicated.has_key()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_confirmed_is_refused() {
    let replicated = Replicated::start().await;
    let release = ReleaseMethod::Script;
    let dialect = Dialect::SetNxPx { release };
    let confirm = Confirm::replicas(1);
    let refused = replicated.try_connect(|it| it.dialect(dialect).confirm(confirm));
    let error = refused.await.unwrap_err();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Dialect { .. })),
        "{error:?}"
    );
    let locks = replicated.connect(1).await;
    let error = locks
        .lock(NAME)
        .dialect(dialect)
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Dialect { .. })),
        "{error:?}"
    );
    for confirm in [
        Confirm::replicas(0),
        confirm.within(Duration::from_secs(60)),
    ] {
        let error = replicated.try_connect(|it| it.confirm(confirm)).await;
        let error = error.unwrap_err();
        let is_setting = matches!(
            error,
            LockError::Invalid(InvalidSetting::Manager {
                setting: "confirm",
                ..
            })
        );
        assert!(is_setting, "{error:?}");
    }
    replicated.primary.cli(&[
        "ACL", "SETUSER", "app", "on", ">one", "~*", "&*", "+@all", "-wait",
    ]);
    let url = format!("redis://app:one@{}", replicated.primary.address());
    let error = LockManager::builder().confirm(confirm).connect(&url).await;
    assert_eq!(kind(&error.unwrap_err()), BackendErrorKind::Permission);
    let quorum = format!(
        "redis+quorum://{},{},{}",
        replicated.primary.address(),
        replicated.replicas[0].address(),
        replicated.replicas[1].address()
    );
    let error = LockManager::builder()
        .confirm(confirm)
        .connect(&quorum)
        .await;
    let error = error.unwrap_err();
    assert!(error.to_string().contains("quorum"), "{error}");
}
