//! Locks that a majority of five independent servers holds, while servers fail, forget and come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_core::config::Confirm;
use lock_core::error::{BackendErrorKind, InvalidSetting};
use lock_core::health::PollingReason;
use lock_core::{LockError, LockManager, LockManagerBuilder};
use test_support::fixtures::SOON;
use test_support::resp::Reply;
use test_support::tls::shown;
use test_support::{Authority, FrozenClock, RedisServer, eventually_async};
use tests::{Trace, fencing_token, one_attempt};

mod dialects;
mod members;
mod minority;
mod slow;
mod waiting;

const NAME: &str = "order:42";
const KEY: &str = "lock:order:42";
/// Bound on a wait, on a loaded machine.
const WAIT: Duration = Duration::from_secs(30);

/// Longer than a test: nothing ends because its lease ends.
const LONG: Duration = Duration::from_secs(300);

struct Quorum(Vec<RedisServer>);

impl Quorum {
    fn start() -> Self {
        Self::of(5)
    }

    fn of(servers: usize) -> Self {
        Self((0..servers).map(|_| RedisServer::start()).collect())
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.0.iter().map(|it| it.address().to_string()).collect();
        format!("redis+quorum://{}", hosts.join(","))
    }

    async fn try_connect(
        &self,
        change: impl FnOnce(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Result<LockManager, LockError> {
        let builder = one_attempt(LockManager::builder()).quarantine(Duration::ZERO);
        change(builder).connect(&self.url()).await
    }

    async fn connect(&self) -> LockManager {
        let connected = self.try_connect(|builder| builder).await;
        connected.expect("the servers run")
    }

    /// Returns how many servers have the key.
    fn holders(&self) -> i64 {
        let servers = self.0.iter();
        servers.map(|it| it.cli(&["EXISTS", KEY]).integer()).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_held_at_a_majority_until_its_release() {
    let quorum = Quorum::start();
    let (first, second) = (quorum.connect().await, quorum.connect().await);
    let held = first.lock(NAME).acquire().await.unwrap();
    assert_eq!(first.health().polling, Some(PollingReason::Quorum));
    assert!(quorum.holders() >= 3);
    assert!(second.lock(NAME).try_acquire().await.unwrap().is_none());
    held.renew().await.unwrap();
    let seen = second.admin().inspect(NAME).await.unwrap();
    assert_eq!(seen.holder().and_then(|it| it.token), held.fencing_token());
    held.release().await.unwrap();
    eventually_async(SOON, async || quorum.holders() == 0).await;
    let next = second.lock(NAME).acquire().await.unwrap();
    next.release().await.unwrap();
}

/// The token is the same at all servers that confirmed it, and their counters are not lower.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_of_the_grant_is_the_highest_one_at_a_majority() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let ahead = u64::MAX / 4;
    quorum.0[3].cli(&["SET", "{lock:order:42}:f", &ahead.to_string()]);
    let mut last = 0;
    for _ in 0..3 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let token = fencing_token(&held);
        assert!(token > last, "{token} after {last}");
        last = token;
        let is_raised = |server: &&RedisServer| {
            let value = server.cli(&["GET", KEY]);
            let counter = server.cli(&["GET", "{lock:order:42}:f"]);
            value.text().contains(&format!(" {token} "))
                && counter.text().parse::<u64>().unwrap() >= token
        };
        let holding = quorum
            .0
            .iter()
            .filter(|it| it.cli(&["EXISTS", KEY]).integer() == 1);
        assert!(holding.filter(is_raised).count() >= 3);
        held.release().await.unwrap();
        eventually_async(SOON, async || quorum.holders() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contending_managers_exclude_each_other() {
    let quorum = Quorum::start();
    let inside = Arc::new(AtomicU32::new(0));
    let token = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let locks = quorum.connect().await;
        let (inside, token) = (Arc::clone(&inside), Arc::clone(&token));
        tasks.push(tokio::spawn(async move {
            for _ in 0..15 {
                let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                let own = fencing_token(&held);
                assert!(
                    token.swap(own, Ordering::SeqCst) < own,
                    "the token went back"
                );
                tokio::time::sleep(Duration::from_millis(2)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                held.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_one_server_after_the_other_forgets() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let mut last = None;
    for server in quorum.0.iter().chain(&quorum.0) {
        let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
        let token = fencing_token(&held);
        assert!(
            last.is_none_or(|last| last < token),
            "{token} after {last:?}"
        );
        last = Some(token);
        eventually_async(SOON, async || quorum.holders() == 5).await;
        server.restart();
        held.renew().await.unwrap();
        held.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dead_servers_of_five_are_tolerated_and_three_are_not() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    quorum.0[0].kill9();
    quorum.0[1].kill9();
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.renew().await.unwrap();
    held.release().await.unwrap();
    let late = quorum.connect().await;
    let held = late.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.release().await.unwrap();
    quorum.0[2].kill9();
    for locks in [&locks, &late] {
        let error = locks.lock(NAME).try_acquire().await.unwrap_err();
        assert!(
            matches!(
                error,
                LockError::NoQuorum {
                    needed: 3,
                    servers: 5,
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.is_retryable());
    }
    let error = quorum.try_connect(|builder| builder).await.unwrap_err();
    let LockError::NoQuorum { granted, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(granted, 2);
    quorum.0[0].restart();
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_lost_in_time_when_three_servers_of_five_die() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let ttl = Duration::from_secs(2);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    for server in &quorum.0[2..] {
        server.kill9();
    }
    let lost = tokio::time::timeout(ttl + SOON, held.lost()).await;
    assert!(lost.is_ok() && held.is_lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_server_does_not_stop_the_others() {
    let quorum = Quorum::start();
    // A call that waits for the frozen server takes this long.
    let patience = Duration::from_secs(20);
    let connecting = quorum.try_connect(|it| it.command_timeout(patience));
    let locks = connecting.await.unwrap();
    quorum.0[4].stop();
    for _ in 0..5 {
        let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
        held.renew().await.unwrap();
        let began = Instant::now();
        let seen = locks.admin().inspect(NAME).await.unwrap();
        assert_eq!(seen.holder().and_then(|it| it.token), held.fencing_token());
        assert!(began.elapsed() < patience / 2, "a majority is enough");
        held.release().await.unwrap();
    }
    quorum.0[4].cont();
    eventually_async(SOON, async || quorum.holders() == 0).await;
}

/// A server that restarted empty gets the lock again, so that more servers may restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_lock_outlives_a_rolling_restart() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    let ttl = Duration::from_secs(3);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    for server in &quorum.0 {
        server.restart();
        eventually_async(WAIT, async || {
            let _renewed_or_later = held.renew().await;
            server.cli(&["EXISTS", KEY]).integer() == 1
        })
        .await;
    }
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_in_quarantine_does_not_count() {
    let quorum = Quorum::start();
    let span = Duration::from_secs(6);
    let short = |builder: LockManagerBuilder| builder.quarantine(span).default_ttl(span / 2);
    let locks = quorum.try_connect(short).await.unwrap();
    // All of them have just started.
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    assert!(
        matches!(error, LockError::NoQuorum { granted: 0, .. }),
        "{error:?}"
    );
    assert_eq!(quorum.holders(), 0);
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.release().await.unwrap();
    for server in &quorum.0[..3] {
        server.restart();
    }
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::NoQuorum { .. }), "{error:?}");
    // The holder of a lock keeps it, and heals it at the server that restarted.
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    // It was granted as soon as one of the three counted. A second restart needs the others too.
    eventually_async(SOON, async || {
        held.renew().await.unwrap();
        quorum.holders() == 5
    })
    .await;
    quorum.0[4].restart();
    eventually_async(SOON, async || {
        let _renewed_or_later = held.renew().await;
        quorum.0[4].cli(&["EXISTS", KEY]).integer() == 1
    })
    .await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttl_above_the_quarantine_is_refused() {
    let quorum = Quorum::start();
    let span = Duration::from_secs(5);
    let locks = quorum
        .try_connect(|builder| builder.quarantine(span).default_ttl(span))
        .await
        .unwrap();
    let error = locks.lock(NAME).ttl(span * 2).acquire().await.unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Invalid(InvalidSetting::Manager {
                setting: "quarantine",
                ..
            })
        ),
        "{error:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_server_twice_is_refused() {
    let server = RedisServer::start();
    let other = RedisServer::start();
    let port = server.port();
    let url = format!(
        "redis+quorum://127.0.0.1:{port},{},localhost:{port}",
        other.address()
    );
    let error = LockManager::connect(&url).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&format!("127.0.0.1:{port}")) && text.contains(&format!("localhost:{port}")),
        "{text}"
    );
}

/// A setting that no quorum has is refused before a missing certificate is.
#[tokio::test]
async fn confirm_is_refused_before_certificates_are_read() {
    let missing = "rediss+quorum://a,b,c?ssl_ca_certs=/none/ca.pem";
    let error = LockManager::builder()
        .confirm(Confirm::replicas(1))
        .connect(missing)
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Invalid(InvalidSetting::Manager {
                setting: "confirm",
                ..
            })
        ),
        "{error}"
    );
}

/// Each server has a login of its own, and one of them has TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_of_urls_has_a_login_for_each_server() {
    let authority = Authority::new();
    let plain = [RedisServer::start(), RedisServer::start()];
    let certificate = authority.server();
    let secured = RedisServer::options()
        .tls(&authority, &certificate, true)
        .start();
    plain[0].cli(&["ACL", "SETUSER", "app", "on", ">one", "~*", "&*", "+@all"]);
    plain[0].cli(&["ACL", "SETUSER", "default", "off"]);
    plain[1].cli(&["CONFIG", "SET", "requirepass", "two"]);
    let urls = [
        format!("redis://app:one@{}", plain[0].address()),
        format!("redis://:two@{}/1", plain[1].address()),
        format!(
            "{}?ssl_ca_certs={}&{}",
            secured.tls_url(),
            shown(&authority.ca()),
            authority.client().parameters()
        ),
    ];
    let builder = || one_attempt(LockManager::builder()).quarantine(Duration::ZERO);
    let locks = builder().connect_quorum(&urls).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.renew().await.unwrap();
    eventually_async(SOON, async || secured.cli(&["EXISTS", KEY]).integer() == 1).await;
    held.release().await.unwrap();
    let wrong = urls.map(|url| url.replace("one@", "three@"));
    let error = builder().connect_quorum(&wrong).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains(&plain[0].port().to_string()), "{text}");
    assert!(!text.contains("three"), "{text}");
}

/// Two servers have clocks that differ by 20 s from the others, each in its direction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_of_servers_need_not_agree() {
    let clocks = [FrozenClock::at(0), FrozenClock::at(0)];
    clocks[0].run_ahead_by(20_000_000);
    clocks[1].run_ahead_by(-20_000_000);
    let skewed = clocks
        .each_ref()
        .map(|clock| RedisServer::options().clock(clock).start());
    let quorum = Quorum((0..3).map(|_| RedisServer::start()).chain(skewed).collect());
    let locks = quorum.connect().await;
    let mut last = 0;
    for down in [0, 3, 4, 1, 3] {
        quorum.0[down].stop();
        let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
        let token = fencing_token(&held);
        assert!(token > last, "{token} after {last}");
        last = token;
        held.renew().await.unwrap();
        held.release().await.unwrap();
        quorum.0[down].cont();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_of_a_cluster_is_refused() {
    let mut quorum = Quorum::start();
    quorum.0[2] = RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .start();
    let error = quorum.try_connect(|it| it).await.unwrap_err();
    let LockError::Backend(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.kind(), BackendErrorKind::Unsupported);
    assert!(error.to_string().contains(&quorum.0[2].port().to_string()));
}

/// Four servers tolerate one failure, as three do.
#[tokio::test]
async fn even_number_of_servers_works_and_is_logged() {
    let mut quorum = Quorum::start();
    quorum.0.pop();
    let (trace, _collecting) = Trace::begin();
    let locks = quorum.connect().await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(quorum.holders() >= 3);
    held.release().await.unwrap();
    trace.assert_says("an even number of servers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_is_refused() {
    let quorum = Quorum::start();
    let primary = quorum.0[0].port().to_string();
    quorum.0[1].cli(&["REPLICAOF", "127.0.0.1", &primary]);
    let error = quorum.try_connect(|it| it).await.unwrap_err();
    let LockError::Backend(error) = error else {
        panic!("{error:?}");
    };
    assert_eq!(error.kind(), BackendErrorKind::NotPrimary);
    assert!(error.to_string().contains(&quorum.0[1].port().to_string()));
}

/// An acquire that was dropped leaves no server locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquires_leave_no_lock() {
    let quorum = Quorum::start();
    let locks = quorum.connect().await;
    for us in [200, 500, 1_000, 2_000, 4_000, 8_000] {
        let acquiring = locks.lock(NAME).ttl(LONG).wait(WAIT).acquire();
        let _dropped = tokio::time::timeout(Duration::from_micros(us), acquiring).await;
    }
    eventually_async(SOON, async || quorum.holders() == 0).await;
}
