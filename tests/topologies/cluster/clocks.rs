//! Fencing tokens of nodes whose clocks differ.

use test_support::{FrozenClock, RedisCluster, eventually, eventually_async};
use tests::fencing_token;
use topologies::connect;

use super::{FAILOVER, KEY, acquired};

/// The greatest difference of clocks for which the documentation promises growing tokens, in microseconds.
const SKEW_US: i64 = 20_000_000;

/// Fails over to the replica, and back to the first owner. Neither has the last steps of the other's counter, and one
/// of the two gets a clock that is behind the other's.
async fn tokens_grow_there_and_back(ahead_us: i64) {
    let clock = FrozenClock::at(0);
    clock.run_ahead_by(ahead_us);
    let cluster = RedisCluster::start_with(|number, options| match number {
        0..3 => options,
        _ => options.clock(&clock),
    });
    let locks = connect(&cluster.url()).await;
    let mut last = 0;
    for _ in 0..2 {
        let old = cluster.owner_of(KEY);
        let new = cluster.replica_of(old);
        let info = || new.cli(&["INFO", "replication"]);
        eventually(FAILOVER, || info().text().contains("master_link_status:up"));
        cluster.cut_replication(old);
        for _ in 0..3 {
            let held = acquired(&locks).await;
            assert!(fencing_token(&held) > last);
            last = fencing_token(&held);
            held.release().await.unwrap();
        }
        let held = acquired(&locks).await;
        last = fencing_token(&held);
        old.kill9();
        cluster.wait_for_owner(KEY, new);
        let next = acquired(&locks).await;
        let token = fencing_token(&next);
        assert!(token > last, "{token} after {last}");
        last = token;
        // Its next renewal goes to the new owner.
        eventually_async(FAILOVER, async || held.is_lost()).await;
        next.release().await.unwrap();
        old.restart();
        cluster.wait_stable();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_the_clocks_of_replicas_are_ahead() {
    tokens_grow_there_and_back(SKEW_US).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_although_the_clocks_of_replicas_are_behind() {
    tokens_grow_there_and_back(-SKEW_US).await;
}
