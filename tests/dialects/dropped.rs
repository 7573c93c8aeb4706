//! Futures of each dialect, dropped after every number of polls.

use lock_core::LockManager;
use lock_core::dialect::Dialect;
use test_support::fixtures::{KEY, NAME, SOON, exists, ms};
use test_support::{RedisServer, cut, eventually_async};
use tests::shut_down;

use super::OWNERS;

const MANY: usize = 60;

async fn is_free(server: &RedisServer, what: &str, dialect: Dialect, polls: usize) {
    let free = tokio::time::timeout(
        SOON / 4,
        eventually_async(SOON, async || !exists(server, KEY)),
    );
    let left = || server.cli(&["PTTL", KEY]).integer();
    assert!(
        free.await.is_ok(),
        "{dialect}: {what}, {polls} polls: {}",
        left()
    );
}

/// No key remains. Where the value names no owner, the lock ends with its ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_any_future_releases_the_lock() {
    for dialect in [&OWNERS[..], &[Dialect::DeadlineGetset]].concat() {
        let server = RedisServer::start();
        // Only a release is fast enough, except where only the ttl can end the lock.
        let ttl = if dialect.capabilities().cancels_unconfirmed() {
            ms(60_000)
        } else {
            ms(1_000)
        };
        let builder = LockManager::builder().dialect(dialect).default_ttl(ttl);
        let locks = builder.connect(&server.url()).await.unwrap();
        for what in ["acquire", "wait", "renew", "release"] {
            let mut is_done = false;
            for polls in 0..MANY {
                is_done = match what {
                    "acquire" => cut(locks.lock(NAME).acquire(), polls).await.is_some(),
                    "wait" => {
                        let other = locks.lock(NAME).acquire().await.unwrap();
                        let waiting = cut(locks.lock(NAME).wait(SOON).acquire(), polls);
                        let releasing = async {
                            tokio::time::sleep(ms(2)).await;
                            other.release().await.unwrap();
                        };
                        tokio::join!(waiting, releasing).0.is_some()
                    }
                    "renew" => {
                        let held = locks.lock(NAME).acquire().await.unwrap();
                        let done = cut(held.renew(), polls).await;
                        held.renew().await.unwrap();
                        held.release().await.unwrap();
                        done.is_some()
                    }
                    _ => {
                        let held = locks.lock(NAME).acquire().await.unwrap();
                        cut(held.release(), polls).await.is_some()
                    }
                };
                is_free(&server, what, dialect, polls).await;
                if is_done {
                    break;
                }
            }
            assert!(is_done, "{dialect}: {what}");
        }
        shut_down(&locks).await;
        assert!(!exists(&server, KEY), "{dialect}");
    }
}
