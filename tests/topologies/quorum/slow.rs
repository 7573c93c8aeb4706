//! A server that is slower than the others, when leases are renewed, and when its quarantine is counted.

use std::task::Poll;

use lock_core::Renew;
use test_support::{Direction, Proxy};
use tokio::task::JoinSet;

use super::minority::ProxiedQuorum;
use super::*;

/// The same batch renews leases that two of three servers have, and leases that one of them has lost. Only the frozen
/// server could decide about the latter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_only_a_frozen_server_can_decide_cost_no_other_lease() {
    const EACH: usize = 20;
    const INTERVAL: Duration = Duration::from_secs(1);
    let quorum = Quorum::of(3);
    // The rest of the shortest lease limits the renewals of a batch.
    let locks = quorum.try_connect(|it| it.command_timeout(WAIT)).await;
    let locks = locks.unwrap();
    // At the same time, so that they are due in the same batches. Those that are kept end first.
    let mut acquiring = JoinSet::new();
    for at in 0..EACH {
        for (name, ttl) in [("kept", 4), ("undecided", 5)] {
            let request = locks.lock(format!("{name}:{at}"));
            let request = request.ttl(Duration::from_secs(ttl));
            let acquire = request.renew(Renew::Every(INTERVAL)).acquire();
            acquiring.spawn(async move { (name, acquire.await.unwrap()) });
        }
    }
    let held = acquiring.join_all().await;
    let (kept, undecided): (Vec<_>, Vec<_>) = held.into_iter().partition(|it| it.0 == "kept");
    let (forgetful, frozen) = (&quorum.0[1], &quorum.0[2]);
    eventually_async(SOON, async || {
        let keys = forgetful.cli(&["KEYS", "lock:*"]);
        keys.array().len() == 2 * EACH
    })
    .await;
    frozen.stop();
    for at in 0..EACH {
        forgetful.cli(&["DEL", &format!("lock:undecided:{at}")]);
    }
    eventually_async(WAIT, async || undecided.iter().all(|it| it.1.is_lost())).await;
    let still_held = kept.iter().filter(|it| !it.1.is_lost()).count();
    assert_eq!(still_held, EACH);
    frozen.cont();
}

/// The renewal is over when a majority has replied. The reply of the last server still counts: it has lost the lock, and
/// gets it again long before the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_that_comes_after_the_renewal_heals_the_lock() {
    let proxied = ProxiedQuorum::start();
    let locks = proxied.connect(WAIT).await;
    let request = locks.lock(NAME).ttl(LONG).wait(WAIT);
    let held = request.acquire().await.unwrap();
    eventually_async(SOON, async || proxied.quorum.holders() == 5).await;
    let (server, proxy) = (&proxied.quorum.0[4], &proxied.proxies[4]);
    server.cli(&["DEL", KEY]);
    for connection in 0..proxy.accepted() {
        proxy.hold(connection, Direction::ToServer);
    }
    held.renew().await.unwrap();
    assert_eq!(proxied.quorum.holders(), 4);
    for connection in 0..proxy.accepted() {
        proxy.resume(connection);
    }
    eventually_async(SOON, async || proxied.quorum.holders() == 5).await;
    held.release().await.unwrap();
}

/// A server that gives the key after the grant gives a token above that of the guard. It shows the guard's token, as the
/// others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_replies_after_the_grant_shows_the_token_of_the_guard() {
    const AHEAD: u64 = 1_000_000;
    let proxied = ProxiedQuorum::start();
    let locks = proxied.connect(WAIT).await;
    let request = || locks.lock(NAME).ttl(LONG).wait(WAIT);
    let before = request().acquire().await.unwrap();
    let counter = fencing_token(&before) + AHEAD;
    before.release().await.unwrap();
    eventually_async(SOON, async || proxied.quorum.holders() == 0).await;
    let (server, proxy) = (&proxied.quorum.0[4], &proxied.proxies[4]);
    server.cli(&["SET", "{lock:order:42}:f", &counter.to_string()]);
    for connection in 0..proxy.accepted() {
        proxy.hold(connection, Direction::ToServer);
    }
    let held = request().acquire().await.unwrap();
    let token = fencing_token(&held);
    assert!(token < counter);
    for connection in 0..proxy.accepted() {
        proxy.resume(connection);
    }
    eventually_async(SOON, async || {
        let value = server.cli(&["GET", KEY]);
        value != Reply::Nil && value.text().contains(&format!(" {token} "))
    })
    .await;
    held.release().await.unwrap();
}

/// A server tells how long it has run when it reads the question, and the manager counts from when it sent the question.
/// The time between the two must not shorten the quarantine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantine_is_not_shortened_by_a_slow_network() {
    const SPAN: u64 = 100;
    const SLOW: Duration = Duration::from_secs(4);
    let clock = FrozenClock::at(1_700_000_000_000_000);
    let start = || RedisServer::options().clock(&clock).start();
    let proxied = ProxiedQuorum::of(Quorum((0..3).map(|_| start()).collect()));
    // With the margins, 3 s are left: less than the question is under way. An old server gets two more questions.
    clock.advance(Duration::from_secs(SPAN));
    let more = if proxied.quorum.0[0].is_before((7, 0)) {
        SLOW * 2
    } else {
        Duration::ZERO
    };
    for proxy in &proxied.proxies {
        proxy.delay(Direction::ToServer, SLOW);
    }
    let builder = one_attempt(LockManager::builder()).command_timeout(WAIT);
    let builder = builder.quarantine(Duration::from_secs(SPAN) + more);
    let locks = builder.connect(&proxied.url()).await.unwrap();
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    assert!(
        matches!(error, LockError::NoQuorum { granted: 0, .. }),
        "{error:?}"
    );
    for proxy in &proxied.proxies {
        proxy.forward();
    }
    let held = locks.lock(NAME).wait(WAIT).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// How many attempts of a manager run at once.
const AT_ONCE: usize = 128;

/// If all of them sent their commands at once, a busy machine would run none of the attempts in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_of_a_manager_take_turns() {
    let proxied = ProxiedQuorum::start();
    let locks = proxied.connect(WAIT).await;
    let connections = |change: fn(&Proxy, usize)| {
        for proxy in &proxied.proxies {
            for connection in 0..proxy.accepted() {
                change(proxy, connection);
            }
        }
    };
    for proxy in &proxied.proxies {
        proxy.record();
    }
    connections(|proxy, connection| proxy.hold(connection, Direction::ToClient));
    let mut acquiring = JoinSet::new();
    for at in 0..2 * AT_ONCE {
        let request = locks.lock(format!("item:{at}:")).ttl(LONG).wait(WAIT);
        acquiring.spawn(request.acquire());
    }
    let asked = |proxy: &Proxy| {
        let requests = (0..proxy.accepted()).map(|connection| proxy.requests(connection));
        let requests: Vec<_> = requests
            .map(|it| String::from_utf8_lossy(&it).into_owned())
            .collect();
        let is_asked = |at: &usize| {
            let key = format!("lock:item:{at}:");
            requests.iter().any(|requests| requests.contains(&key))
        };
        (0..2 * AT_ONCE).filter(is_asked).count()
    };
    eventually_async(WAIT, async || {
        proxied.proxies.iter().all(|proxy| asked(proxy) == AT_ONCE)
    })
    .await;
    // It stays so.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let at_once: Vec<_> = proxied.proxies.iter().map(asked).collect();
    assert_eq!(at_once, [AT_ONCE; 5]);
    connections(Proxy::resume);
    for held in acquiring.join_all().await {
        held.unwrap().release().await.unwrap();
    }
}

/// For example in a `buffer_unordered` whose consumer is waiting for something else.
#[tokio::test]
async fn futures_that_nobody_polls_do_not_keep_their_turns() {
    let proxied = ProxiedQuorum::start();
    let locks = proxied.connect(Duration::from_millis(500)).await;
    let acquire = |name: String| Box::pin(locks.lock(name).ttl(LONG).wait(WAIT).acquire());
    let mut unpolled: Vec<_> = (0..AT_ONCE)
        .map(|at| acquire(format!("item:{at}")))
        .collect();
    std::future::poll_fn(|cx| {
        for acquiring in &mut unpolled {
            assert!(acquiring.as_mut().poll(cx).is_pending());
        }
        Poll::Ready(())
    })
    .await;
    let held = acquire(NAME.to_owned()).await.unwrap();
    held.release().await.unwrap();
    drop(unpolled);
}
