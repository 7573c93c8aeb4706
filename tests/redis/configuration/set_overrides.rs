//! Times that replace those of the code for the locks of a set.

use std::time::{Duration, Instant};

use lock_core::config::Override;
use lock_core::error::{InvalidOverrideReason, InvalidSetting};
use lock_core::request::Names;
use lock_core::{
    LockError, LockGuard, LockManager, LockRequest, LockSet, distributed_lock, lock_name,
};
use test_support::RedisServer;
use test_support::fixtures::{NOTICE, keys, ms, time_to_expiry};
use tests::shut_down;

use crate::connect;

const ORDER: &str = "order:{id}";
const STOCK: &str = "stock:{sku}";
const SECOND: Duration = Duration::from_secs(1);

/// The keys of the set, with the counters left out.
const LOCKED: [&str; 3] = ["lock:audit", "lock:order:7", "lock:stock:a"];

#[distributed_lock(
    name = ["order:{id}", "stock:{sku}", "audit"],
    ttl = "30s",
    wait = "20s",
    manager = locks,
    bind = set,
)]
async fn ship(
    locks: &LockManager,
    server: &RedisServer,
    id: u8,
    sku: &str,
) -> Result<[Duration; 3], LockError> {
    let set: &LockSet = set;
    assert_eq!(set.guards().len(), 3);
    Ok(LOCKED.map(|key| time_to_expiry(server, key)))
}

fn request(locks: &LockManager) -> LockRequest<Names> {
    let (id, sku) = (7, "a");
    let names = [lock_name!("order:{id}"), lock_name!("stock:{sku}")];
    let names = names.into_iter().chain(["audit".into()]);
    locks.lock_all(names).ttl(SECOND * 30)
}

/// Checks that a lock has a ttl of this many seconds.
#[track_caller]
fn assert_ttl(left: Duration, seconds: u32) {
    let ttl = SECOND * seconds;
    assert!(left <= ttl && left > ttl - SECOND, "{left:?}");
}

/// The override of a template is for its lock only. The others keep the ttl of the code.
#[tokio::test]
async fn ttl_of_an_override_is_for_each_lock_of_its_template() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let overrides = [
        (ORDER, Override::new().ttl(SECOND * 5)),
        (STOCK, Override::new().ttl(SECOND * 50)),
    ];
    locks.set_overrides(overrides).unwrap();
    let set = request(&locks).acquire().await.unwrap();
    let [audit, order, stock] = LOCKED.map(|key| time_to_expiry(&server, key));
    assert_ttl(audit, 30);
    assert_ttl(order, 5);
    assert_ttl(stock, 50);
    // The set is held as long as its first lease.
    assert!(set.remaining() <= SECOND * 5, "{:?}", set.remaining());
    set.release().await.unwrap();
    let set = request(&locks).read().try_acquire().await.unwrap().unwrap();
    assert_ttl(time_to_expiry(&server, "lock:stock:a"), 50);
    set.release().await.unwrap();

    let [audit, order, stock] = ship(&locks, &server, 7, "a").await.unwrap();
    assert_ttl(audit, 30);
    assert_ttl(order, 5);
    assert_ttl(stock, 50);
    assert!(format!("{locks:?}").contains("\"stock:{sku}\": Override {"));
    locks.clear_overrides().unwrap();
    assert!(format!("{locks:?}").contains("overrides: {}"));
    for left in ship(&locks, &server, 7, "a").await.unwrap() {
        assert_ttl(left, 30);
    }
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// A set waits for all its locks together, so the shortest wait of its templates counts. It may be longer than the
/// wait of the code only when each name has such an override.
#[tokio::test]
async fn shortest_wait_of_the_overrides_limits_the_set() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let busy = locks.lock("stock:a").acquire().await.unwrap();
    let time_of_a_wait = async || {
        let started = Instant::now();
        let error = ship(&locks, &server, 7, "a").await.unwrap_err();
        assert!(
            matches!(&error, LockError::Timeout { key, .. } if &**key == "lock:stock:a"),
            "{error}"
        );
        started.elapsed()
    };
    for waits in [[200, 60_000], [60_000, 200], [200, 300]] {
        let [order, stock] = waits.map(|wait| Override::new().wait(ms(wait)));
        locks
            .set_overrides([(ORDER, order), (STOCK, stock)])
            .unwrap();
        let took = time_of_a_wait().await;
        assert!((ms(200)..ms(200) + NOTICE).contains(&took), "{took:?}");
    }
    // One attempt. The locks that the earlier calls had got are released in the background.
    shut_down(&locks).await;
    locks
        .set_overrides([(ORDER, Override::new().wait(Duration::ZERO))])
        .unwrap();
    let error = ship(&locks, &server, 7, "a").await.unwrap_err();
    assert!(matches!(error, LockError::Contended { .. }), "{error}");
    busy.release().await.unwrap();
    shut_down(&locks).await;
    ship(&locks, &server, 7, "a").await.unwrap();
}

/// A template that no lock can have is an error, and the manager keeps its overrides.
#[tokio::test]
async fn override_of_an_unbalanced_template_is_refused() {
    let times = Override::new().ttl(SECOND);
    let builder = LockManager::builder().overrides([("order:{id", times)]);
    let error = builder.in_memory().unwrap_err();
    assert!(error.to_string().contains("not balanced"), "{error}");
    let locks = LockManager::builder()
        .overrides([(ORDER, times)])
        .in_memory()
        .unwrap();
    let error = locks.set_overrides([("order:id}", times)]).unwrap_err();
    assert!(
        matches!(
            &error,
            LockError::Invalid(InvalidSetting::Override {
                reason: InvalidOverrideReason::Template,
                ..
            })
        ),
        "{error}"
    );
    assert!(format!("{locks:?}").contains("\"order:{id}\": Override {"));
}

/// The longest hold of one lock ends the set.
#[tokio::test(start_paused = true)]
async fn longest_hold_of_an_override_ends_the_set() {
    let locks = LockManager::builder()
        .overrides([(STOCK, Override::new().max_hold(SECOND * 40))])
        .in_memory()
        .unwrap();
    let set = request(&locks).acquire().await.unwrap();
    tokio::time::sleep(SECOND * 39).await;
    assert!(!set.is_lost());
    tokio::time::sleep(SECOND * 2).await;
    assert!(set.is_lost());
    let lost: Vec<_> = set.guards().iter().map(LockGuard::is_lost).collect();
    assert_eq!(lost, [false, false, true]);
}

/// An override that does not fit one lock is named, and none of the locks is acquired.
#[tokio::test]
async fn override_that_does_not_fit_a_lock_of_a_set_is_named() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    locks
        .set_overrides([(STOCK, Override::new().ttl(SECOND))])
        .unwrap();
    let monitor = server.monitor();
    let error = request(&locks).min_hold(SECOND).acquire().await;
    let LockError::Invalid(InvalidSetting::Override {
        template, reason, ..
    }) = error.unwrap_err()
    else {
        panic!("the override does not fit");
    };
    assert_eq!(&*template, STOCK);
    assert!(
        matches!(reason, InvalidOverrideReason::MinHold { min_hold, ttl, .. } if min_hold == ttl),
        "{reason}"
    );
    assert_eq!(monitor.stop().from_clients().count(), 0);
}
