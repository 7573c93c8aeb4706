//! Tokens of a primary that was a replica meanwhile, and the setting that raises them.

use std::time::Duration;

use lock_core::LockManager;
use lock_core::error::BackendErrorKind;
use test_support::{FrozenClock, RedisServer, SentinelService, eventually, eventually_async};
use tests::{fencing_token, one_attempt};
use topologies::connect;

use super::{FAILOVER, NAME, NOTICE, acquired, backend_error};

/// It is the primary of a later epoch. With the known epoch, its tokens might be lower than those of the primary
/// between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_was_a_replica_is_not_used_before_a_sentinel_names_it() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    acquired(&locks, NAME).await.release().await.unwrap();
    for sentinel in service.sentinels() {
        sentinel.kill9();
    }
    let primary = &service.servers()[0];
    let other = service.servers()[1].port().to_string();
    primary.cli(&["REPLICAOF", "127.0.0.1", &other]);
    eventually_async(NOTICE, async || {
        let refused = locks.lock(NAME).try_acquire().await;
        refused.is_err_and(|error| backend_error(&error) == BackendErrorKind::NotPrimary)
    })
    .await;
    primary.cli(&["REPLICAOF", "NO", "ONE"]);
    eventually_async(NOTICE, async || {
        let error = locks.lock(NAME).try_acquire().await;
        let error = error.expect_err("no Sentinel has named the server since");
        backend_error(&error) == BackendErrorKind::NoPrimary
    })
    .await;
    for sentinel in service.sentinels() {
        sentinel.restart();
    }
    acquired(&locks, NAME).await.release().await.unwrap();
}

/// A replica that is announced too early was a replica too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_that_a_sentinel_names_again_is_used_at_once() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    acquired(&locks, NAME).await.release().await.unwrap();
    let primary = &service.servers()[0];
    let other = service.servers()[1].port().to_string();
    primary.cli(&["REPLICAOF", "127.0.0.1", &other]);
    let refused = locks.lock(NAME).try_acquire().await;
    assert!(refused.is_err(), "{refused:?}");
    primary.cli(&["REPLICAOF", "NO", "ONE"]);
    acquired(&locks, NAME).await.release().await.unwrap();
}

/// Returns whether a replica follows its primary. A Sentinel that names the primary ends the connections of the replica.
fn is_linked(replica: &RedisServer) -> bool {
    let info = replica
        .connect()
        .and_then(|mut connection| connection.call(&["INFO", "replication"]));
    info.is_ok_and(|info| info.text().contains("master_link_status:up"))
}

/// Fails over to the only replica that may take over, and back to the first primary. Neither has the last steps of the
/// other's counter, and one of the two gets a clock that is behind the other's.
async fn tokens_grow_there_and_back(ahead_us: i64) {
    let clock = FrozenClock::at(0);
    clock.run_ahead_by(ahead_us);
    let service = SentinelService::start_with(|number, options| match number {
        0 => options,
        1 => options.clock(&clock),
        _ => options.args(["--replica-priority", "0"]),
    });
    let locks = connect(&service.url()).await;
    let mut last = 0;
    for (old, new) in [(0, 1), (1, 0)] {
        let (old, new) = (&service.servers()[old], &service.servers()[new]);
        eventually(FAILOVER, || is_linked(new));
        service.cut_replication(old);
        for _ in 0..3 {
            let held = acquired(&locks, NAME).await;
            assert!(fencing_token(&held) > last);
            last = fencing_token(&held);
            held.release().await.unwrap();
        }
        old.kill9();
        service.wait_for_switch(old.port());
        assert_eq!(service.primary().port(), new.port());
        let held = acquired(&locks, NAME).await;
        let token = fencing_token(&held);
        assert!(token > last, "{token} after {last}");
        last = token;
        held.release().await.unwrap();
        old.restart();
        // The Sentinels would do that too, up to 20 s later.
        old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_the_clock_of_the_replica_is_ahead() {
    tokens_grow_there_and_back(20_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_the_clock_of_the_replica_is_behind() {
    tokens_grow_there_and_back(-20_000_000).await;
}

#[tokio::test]
async fn fencing_lead_raises_tokens_by_as_much() {
    const LEAD: Duration = Duration::from_secs(3_600);
    let server = RedisServer::start();
    let plain = connect(&server.url()).await;
    let before = plain.lock(NAME).acquire().await.unwrap();
    let token = fencing_token(&before);
    before.release().await.unwrap();
    let builder = one_attempt(LockManager::builder()).fencing_lead(LEAD);
    let ahead = builder.connect(&server.url()).await.unwrap();
    let after = ahead.lock(NAME).acquire().await.unwrap();
    let difference = fencing_token(&after) - token;
    let lead = u64::try_from(LEAD.as_micros()).unwrap();
    let elapsed = u64::try_from(FAILOVER.as_micros()).unwrap();
    assert!((lead..lead + elapsed).contains(&difference), "{difference}");
    after.release().await.unwrap();
    // A manager without it continues the counter.
    let last = plain.lock(NAME).acquire().await.unwrap();
    assert!(fencing_token(&last) > token + lead);
}
