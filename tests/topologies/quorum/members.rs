//! Which servers count: each one once, and only if it remembers what it granted.

use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{Proxy, StandIn, run_under_resolver};

use super::*;

/// The first server has a second address, which does not answer at first.
#[tokio::test]
async fn second_address_of_a_server_has_no_vote() {
    let (trace, _collecting) = Trace::begin();
    let servers = [RedisServer::start(), RedisServer::start()];
    let alias = Proxy::in_front_of(&servers[0]);
    alias.refuse();
    let [first, third] = servers.each_ref().map(RedisServer::address);
    let url = format!("redis+quorum://{first},{},{third}", alias.address());
    let connect = || {
        let builder = one_attempt(LockManager::builder()).quarantine(Duration::ZERO);
        builder.connect(&url)
    };
    let (here, there) = (connect().await.unwrap(), connect().await.unwrap());
    let held = here.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    alias.forward();
    servers[1].kill9();
    eventually_async(SOON, async || {
        let held = here.lock(NAME).try_acquire().await;
        let error = held.expect_err("one server is no majority of three");
        assert!(
            matches!(error, LockError::NoQuorum { granted: 1, .. }),
            "{error:?}"
        );
        trace.count("this address has no vote") == 1
    })
    .await;
    trace.assert_says(&format!(
        "the lock servers at {first} and {} are one server",
        alias.address()
    ));
    servers[1].restart();
    let held = here.lock(NAME).wait(WAIT).acquire().await.unwrap();
    assert!(there.lock(NAME).try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    // The address leads to a server of its own.
    let own = RedisServer::start();
    alias.lead_to(&own);
    alias.cut_all();
    servers[1].kill9();
    let held = here.lock(NAME).wait(WAIT).acquire().await.unwrap();
    assert_eq!(own.cli(&["EXISTS", KEY]).integer(), 1);
    held.release().await.unwrap();
}

/// The clocks of two servers that lost a lock are set forward, so that they seem to run for hours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_that_is_set_forward_does_not_end_a_quarantine() {
    const HOURS: u64 = 7_200_000_000;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let clock = FrozenClock::at(u64::try_from(now.as_micros()).unwrap());
    let start = |_| RedisServer::options().clock(&clock).start();
    let quorum = Quorum((0..3).map(start).collect());
    clock.run_ahead_by(HOURS.cast_signed());
    let span = |builder: LockManagerBuilder| builder.quarantine(LONG).default_ttl(LONG / 2);
    let holder = quorum.try_connect(span).await.unwrap();
    let rival = quorum.try_connect(span).await.unwrap();
    let held = holder.lock(NAME).acquire().await.unwrap();
    eventually_async(SOON, async || quorum.holders() == 3).await;
    for server in &quorum.0[..2] {
        server.restart();
    }
    clock.run_ahead_by(2 * HOURS.cast_signed());
    for _ in 0..3 {
        let outcome = rival.lock(NAME).try_acquire().await;
        assert!(
            matches!(outcome, Err(LockError::NoQuorum { .. }) | Ok(None)),
            "{outcome:?}"
        );
    }
    drop(held);
}

/// The tests of [`followed`] need a resolver of their own, and so a process of their own.
#[test]
fn members_are_followed_by_name() {
    run_under_resolver("members::followed");
}

mod followed {
    use std::net::Ipv4Addr;

    use test_support::MovableName;

    use super::*;

    const FIRST: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    /// Otherwise this manager would count the old server, and managers that begin later the new one: two majorities would
    /// have no server in common.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "`members_are_followed_by_name` runs it"]
    async fn member_whose_name_has_moved_is_the_new_server() {
        let [old, new] = [RedisServer::start(), RedisServer::start()];
        let others = [RedisServer::start(), RedisServer::start()];
        let first = Proxy::in_front_of(&old);
        let _beside = first.beside(SECOND, &new);
        let name = MovableName::new("member", &[FIRST]);
        let port = first.address().port();
        let [second, third] = others.each_ref().map(RedisServer::address);
        let url = format!("redis+quorum://{}:{port},{second},{third}", name.as_str());
        let builder = one_attempt(LockManager::builder()).quarantine(Duration::ZERO);
        let builder = builder.resolve_interval(Duration::from_millis(50));
        let locks = builder.connect(&url).await.unwrap();
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        name.lead_to(&[SECOND]);
        // The lock is given back at the new server by a renewal, which comes at once.
        eventually_async(SOON, async || new.cli(&["EXISTS", KEY]).integer() == 1).await;
        eventually_async(SOON, async || first.open() == 0).await;
        assert!(!held.is_lost());
        held.release().await.unwrap();
    }
}

/// The error names what happened: a missing right, or a server that doesn't show it.
#[tokio::test]
async fn server_without_a_run_id_needs_a_quarantine_of_zero() {
    let denied = "NOPERM User default has no permissions to run the 'info' command";
    let denied = Answer::Error(denied.to_owned());
    let denied = Quirk::Replies(Target::Command("INFO"), denied);
    for (quirk, kind, expected) in [
        (
            denied,
            BackendErrorKind::Permission,
            "the user may not run INFO",
        ),
        (
            Quirk::NoRunId,
            BackendErrorKind::Unsupported,
            "INFO shows no run_id",
        ),
    ] {
        let servers = [(); 3].map(|()| RedisServer::start());
        let stand_ins = servers
            .each_ref()
            .map(|server| StandIn::start(server, [quirk.clone()]));
        let addresses = stand_ins.each_ref().map(|it| it.address().to_string());
        let url = format!("redis+quorum://{}", addresses.join(","));
        let builder = one_attempt(LockManager::builder());
        let refused = builder.clone().connect(&url).await.unwrap_err();
        assert!(refused.to_string().contains(expected), "{refused}");
        assert!(
            matches!(&refused, LockError::Backend(error) if error.kind() == kind),
            "{refused}"
        );
        let locks = builder.quarantine(Duration::ZERO).connect(&url).await;
        let held = locks.unwrap().lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
    }
}
