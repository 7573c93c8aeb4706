//! Readers, writers and permits while the slot of their lock moves.

use lock_core::{Kind, LockError};
use test_support::fixtures::SOON;
use test_support::{RedisCluster, eventually_async};
use tests::fencing_token;
use topologies::connect;

use super::{FAILOVER, KEY, NAME, is_free_in_open_slot, other_primary};

/// The key of the holders.
const HOLDERS: &str = "{lock:order:42}:h";
const TWO_OF_FOUR: Kind = Kind::Permits { of: 4, weight: 2 };

/// The members and the group move with the slot, and the writer that waits gets in after the last reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_lock_moves_with_its_slot() {
    let cluster = RedisCluster::start();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for way in cluster.slot_moves() {
        for kind in [Kind::Read, TWO_OF_FOUR] {
            let first = locks.lock(NAME).kind(kind).acquire().await.unwrap();
            let to = other_primary(&cluster);
            cluster.move_slot_by(*way, KEY, to);
            assert_eq!(to.cli(&["EXISTS", HOLDERS]).integer(), 1);
            first.renew().await.unwrap();
            let second = others.lock(NAME).kind(kind).acquire().await.unwrap();
            assert_eq!(fencing_token(&first), fencing_token(&second));
            let writing = tokio::spawn(locks.lock(NAME).wait(FAILOVER).acquire());
            let is_queued = async || locks.admin().inspect(NAME).await.unwrap().waiters_total == 1;
            eventually_async(SOON, is_queued).await;
            first.release().await.unwrap();
            cluster.move_slot_by(*way, KEY, other_primary(&cluster));
            second.renew().await.unwrap();
            assert!(!writing.is_finished());
            let token = fencing_token(&second);
            second.release().await.unwrap();
            let writer = tokio::time::timeout(SOON, writing).await.unwrap();
            let writer = writer.unwrap().unwrap();
            assert!(fencing_token(&writer) > token);
            let reader = writer.downgrade().await.unwrap();
            cluster.move_slot_by(*way, KEY, other_primary(&cluster));
            reader.release().await.unwrap();
        }
    }
}

/// While the slot is open, no key of the lock can be read together with another one. The holders find that out as
/// an error that they can repeat, and no other client gets the lock before the end of their leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_lock_is_not_lost_in_a_half_moved_slot() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    for moved in [&[][..], &[KEY], &[HOLDERS], &[KEY, HOLDERS]] {
        let reader = locks.lock(NAME).read().acquire().await.unwrap();
        let other = locks.lock(NAME).read().acquire().await.unwrap();
        let to = other_primary(&cluster);
        cluster.begin_move(KEY, to);
        if !moved.is_empty() {
            cluster.move_keys(moved, to);
        }
        let renewed = reader.renew().await;
        let error = renewed.as_ref().err();
        assert!(
            error.is_none_or(LockError::is_retryable),
            "{moved:?}: {renewed:?}"
        );
        assert!(!reader.is_lost(), "{moved:?}");
        // The release of one reader does not free the lock of the other one.
        let released = other.release().await;
        let error = released.as_ref().err();
        assert!(
            error.is_none_or(LockError::is_retryable),
            "{moved:?}: {released:?}"
        );
        assert!(!is_free_in_open_slot(&cluster, to), "{moved:?}");
        cluster.end_move(KEY, to);
        reader.renew().await.unwrap();
        let writing = locks.lock(NAME).try_acquire().await.unwrap();
        assert!(writing.is_none(), "{moved:?}");
        reader.release().await.unwrap();
        // The other release goes on in the background.
        let writing = locks.lock(NAME).wait(FAILOVER).acquire().await;
        writing.unwrap().release().await.unwrap();
    }
}
