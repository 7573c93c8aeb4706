//! Releases whose replies are lost while the slot of the lock moves.

use lock_core::LockError;
use test_support::fixtures::{LONG, SOON};
use test_support::{Lost, RedisCluster, eventually_async};
use topologies::connect;

use super::{KEY, NAME, acquired, is_free_in_open_slot, other_primary};

/// While the slot is open, a release frees the key alone. Its reply is lost, so the repetition finds no key. That is
/// no loss of the lock: it was held until it was released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reply_to_the_drop_of_a_key_is_no_loss() {
    let cluster = RedisCluster::start();
    let proxies = cluster.proxies();
    let locks = connect(&cluster.url_through(&proxies)).await;
    for moves_key in [false, true] {
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let (from, to) = (cluster.owner_of(KEY), other_primary(&cluster));
        cluster.begin_move(KEY, to);
        if moves_key {
            cluster.move_keys(&[KEY], to);
        }
        let serving = if moves_key { to } else { from }.port();
        let nodes = cluster.nodes().iter().zip(&proxies);
        let (_, proxy) = { nodes }.find(|it| it.0.port() == serving).unwrap();
        // A script with one key. The lock is not renewed, so it is that of the drop.
        let drop = format!("\r\n$1\r\n1\r\n${}\r\n{KEY}\r\n", KEY.len());
        proxy.lose_next(Lost::Reply, drop);
        let releasing = tokio::spawn(held.release());
        eventually_async(SOON, async || !proxy.is_armed()).await;
        eventually_async(SOON, async || is_free_in_open_slot(&cluster, to)).await;
        cluster.end_move(KEY, to);
        let released = releasing.await.unwrap();
        let error = released.as_ref().err();
        assert!(error.is_none_or(LockError::is_retryable), "{released:?}");
        acquired(&locks).await.release().await.unwrap();
    }
}
